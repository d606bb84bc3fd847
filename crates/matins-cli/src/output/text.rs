//! Data of others as harmless text.

use std::borrow::Cow;

/// Characters that turn the direction of what follows.
fn turns_direction(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn is_harmless(c: char) -> bool {
    !c.is_control() && !turns_direction(c)
}

/// Several lines: line breaks and tabs stay, whole control sequences go.
pub(crate) fn block(text: &str) -> Cow<'_, str> {
    if text.chars().all(|c| is_harmless(c) || matches!(c, '\n' | '\t')) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\u{1b}' => skip_sequence(&mut rest),
            // CSI in one character.
            '\u{9b}' => skip_parameters(&mut rest),
            '\n' | '\t' => out.push(c),
            c if is_harmless(c) => out.push(c),
            _ => {}
        }
    }
    Cow::Owned(out)
}

/// One line: what would break it becomes a blank.
pub(crate) fn line(text: &str) -> String {
    let one: String = block(text).chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    one.trim_end().to_owned()
}

/// One line of at most `chars` characters.
pub(crate) fn short(text: &str, chars: usize) -> String {
    let one = line(text);
    if one.chars().count() <= chars {
        return one;
    }
    let mut cut: String = one.chars().take(chars.saturating_sub(1)).collect();
    cut.push('…');
    cut
}

type Rest<'a> = std::iter::Peekable<std::str::Chars<'a>>;

/// What follows an ESC.
fn skip_sequence(rest: &mut Rest<'_>) {
    match rest.peek() {
        Some('[') => {
            rest.next();
            skip_parameters(rest);
        }
        // Strings (title, link, device control) run to BEL or ESC \.
        Some(']' | 'P' | 'X' | '^' | '_') => {
            while let Some(c) = rest.next() {
                match c {
                    '\u{7}' | '\u{9c}' => return,
                    '\u{1b}' => {
                        if rest.peek() == Some(&'\\') {
                            rest.next();
                        }
                        return;
                    }
                    _ => {}
                }
            }
        }
        Some(' '..='/') => {
            while rest.next_if(|c| matches!(c, ' '..='/')).is_some() {}
            rest.next();
        }
        Some('0'..='~') => {
            rest.next();
        }
        _ => {}
    }
}

/// Parameters and the final character of a CSI sequence.
fn skip_parameters(rest: &mut Rest<'_>) {
    while rest.next_if(|c| matches!(c, ' '..='?')).is_some() {}
    rest.next_if(|c| matches!(c, '@'..='~'));
}

/// Bytes of a program's output, as text.
pub(crate) fn lossy(bytes: &[u8]) -> String {
    block(&String::from_utf8_lossy(bytes)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_sequences_go_and_text_stays() {
        for (text, expected) in [
            ("plain 键 é", "plain 键 é"),
            ("\u{1b}[31mred\u{1b}[0m", "red"),
            ("\u{1b}]0;title\u{7}after", "after"),
            ("\u{1b}]8;;http://evil\u{1b}\\link\u{1b}]8;;\u{1b}\\", "link"),
            ("\u{9b}2Jx", "x"),
            ("a\u{8}b\rc\u{0}d", "abcd"),
            ("\u{1b}(0x\u{1b}7y", "xy"),
            ("\u{202e}evil", "evil"),
            ("open \u{1b}]0;never closed", "open "),
            ("\u{1b}", ""),
        ] {
            assert_eq!(block(text), expected, "{text:?}");
        }
    }

    #[test]
    fn a_line_is_one_line() {
        assert_eq!(line("a\nb\tc\n"), "a b c");
        assert_eq!(short("一二三四五", 3), "一二…");
    }
}
