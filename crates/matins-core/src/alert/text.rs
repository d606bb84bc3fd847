//! What a person reads: what happened, why, what to do next.
//!
//! Values from outside (error texts, names) are shown as text and nothing else: control characters
//! go, and what a chat reads as markup or as a mention is replaced.

use std::fmt::Write as _;

use jiff::Timestamp;

use super::channel::{Kind, Lang};
use super::digest::{Digest, Sample};
use super::words_of;
use super::{Rule, Severity};

/// A text on its way into a channel's form.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    pub title: String,
    /// What may be cut.
    pub body: String,
    /// What must survive a cut: what to do next.
    pub next: Vec<String>,
    pub link: Option<String>,
    pub severity: Severity,
    pub resolved: bool,
}

/// Characters of one value.
const VALUE_CHARS: usize = 240;
/// Bytes of a title.
const TITLE_BYTES: usize = 160;

/// Writes one message about all of `digests`.
pub fn compose(digests: &[Digest], lang: Lang, kind: Kind, public_url: Option<&str>) -> Text {
    let writer = Writer { lang, kind };
    match digests {
        [one] => writer.single(one, public_url),
        many => writer.several(many, public_url),
    }
}

struct Writer {
    lang: Lang,
    kind: Kind,
}

impl Writer {
    fn say(&self, en: &str, zh: &str) -> String {
        match self.lang {
            Lang::En => en.to_owned(),
            Lang::ZhCn => zh.to_owned(),
        }
    }

    /// A value as plain text of this channel.
    fn safe(&self, value: &str) -> String {
        let mut out = String::new();
        for (n, c) in value.chars().enumerate() {
            if n == VALUE_CHARS {
                out.push('…');
                break;
            }
            match c {
                '\n' | '\r' | '\t' => out.push(' '),
                c if c.is_control() || is_invisible(c) => {}
                '<' if self.replaces_angles() => out.push('‹'),
                '>' if self.replaces_angles() => out.push('›'),
                '`' | '*' | '[' | ']' | '#' | '|' if self.is_markdown() => {
                    out.extend(fullwidth(c));
                }
                c => out.push(c),
            }
        }
        out
    }

    const fn is_markdown(&self) -> bool {
        matches!(self.kind, Kind::Wecom | Kind::Dingtalk)
    }

    const fn replaces_angles(&self) -> bool {
        matches!(self.kind, Kind::Wecom | Kind::Dingtalk | Kind::Feishu)
    }

    fn single(&self, digest: &Digest, public_url: Option<&str>) -> Text {
        let mut body = String::new();
        let shown = digest.samples.len() as u64;
        for sample in &digest.samples {
            let _ = writeln!(body, "{}", self.sample(digest.rule, sample));
        }
        let more = digest.count.saturating_sub(shown);
        if more > 0 {
            let _ = writeln!(
                body,
                "{}",
                self.say(&format!("… and {more} more"), &format!("…… 还有 {more} 个"))
            );
        }
        if digest.count > 1 && digest.causes.len() > 1 {
            let _ = writeln!(body, "{}", self.say("by cause:", "按原因："));
            let mut causes: Vec<_> = digest.causes.iter().collect();
            causes.sort_by_key(|(_, n)| std::cmp::Reverse(**n));
            for (cause, n) in causes {
                let _ = writeln!(body, "  {n} × {}", self.safe(cause));
            }
        }
        if digest.last_at > digest.first_at {
            let (from, to) = (time(digest.first_at), time(digest.last_at));
            let line = self.say(&format!("from {from} to {to}"), &format!("从 {from} 到 {to}"));
            let _ = writeln!(body, "{line}");
        }
        Text {
            title: self.title(digest),
            body: body.trim_end().to_owned(),
            next: next(digest),
            link: public_url.map(|url| link(url, digest)),
            severity: digest.severity,
            resolved: digest.resolved,
        }
    }

    fn several(&self, digests: &[Digest], public_url: Option<&str>) -> Text {
        let n = digests.len();
        let severity = digests.iter().map(|d| d.severity).max().unwrap_or(Severity::Info);
        let resolved = digests.iter().all(|digest| digest.resolved);
        let mut sorted: Vec<&Digest> = digests.iter().collect();
        sorted.sort_by_key(|digest| (digest.resolved, std::cmp::Reverse(digest.severity)));
        let mut body = String::new();
        for digest in sorted {
            let _ = writeln!(body, "- {}", self.title(digest));
            if let Some(sample) = digest.samples.first() {
                let _ = writeln!(body, "  {}", self.sample(digest.rule, sample));
            }
        }
        let mark = self.mark(severity, resolved);
        let title = self.say(&format!("{mark}{n} alerts"), &format!("{mark}{n} 条告警"));
        Text {
            title,
            body: body.trim_end().to_owned(),
            next: vec!["matins alert list".to_owned()],
            link: public_url.map(|url| api(url, "alerts")),
            severity,
            resolved,
        }
    }

    fn mark(&self, severity: Severity, resolved: bool) -> String {
        match (resolved, severity) {
            (true, _) => self.say("[over] ", "【已恢复】"),
            (false, Severity::Critical) => self.say("[critical] ", "【严重】"),
            (false, Severity::Warning) => self.say("[warning] ", "【警告】"),
            (false, Severity::Info) => self.say("[info] ", "【提示】"),
        }
    }

    fn title(&self, digest: &Digest) -> String {
        let mark = self.mark(digest.severity, digest.resolved);
        let subject = self.safe(&digest.subject);
        let said = words_of::title(digest.rule, &subject, digest.count, digest.resolved, self.lang);
        cut(&format!("{mark}{said}"), TITLE_BYTES, self.lang)
    }

    fn sample(&self, rule: Rule, sample: &Sample) -> String {
        let at = time(sample.at);
        let get = |name: &str| sample.get(name).map(|value| self.safe(value));
        if rule == Rule::DeadLetter {
            let (task, attempt) = (get("task"), get("attempt"));
            let (task, attempt) = (task.unwrap_or_default(), attempt.unwrap_or_default());
            let error = get("error").unwrap_or_default();
            return self.say(
                &format!("{at} task {task}, attempt {attempt}: {error}"),
                &format!("{at} 任务 {task}，第 {attempt} 次尝试：{error}"),
            );
        }
        let mut line = at;
        for fact in &sample.facts {
            let name = words_of::fact(&fact.name, self.lang);
            let colon = self.say(": ", "：");
            let _ = write!(line, "; {}{colon}{}", self.safe(name), self.safe(&fact.value));
        }
        line.replacen("; ", " ", 1)
    }
}

/// The commands that help. Names are quoted as a shell wants them.
fn next(digest: &Digest) -> Vec<String> {
    if digest.resolved {
        return Vec::new();
    }
    let task = digest.samples.first().and_then(|sample| sample.get("task"));
    let subject = shell(&digest.subject);
    match (digest.rule, task) {
        (Rule::DeadLetter, Some(id)) if digest.count == 1 => {
            let id = shell(id);
            vec![format!("matins dead show {id}"), format!("matins dead replay {id}")]
        }
        (Rule::DeadLetter, _) => vec![
            format!("matins dead list --type {subject}"),
            format!("matins dead replay --type {subject} --canary"),
        ],
        (rule, _) => words_of::next(rule, &subject),
    }
}

/// Where the API shows it, to whoever has a token.
fn link(url: &str, digest: &Digest) -> String {
    let subject = super::sign::query_encoded(&digest.subject);
    let task = digest.samples.first().and_then(|sample| sample.get("task"));
    let path = match digest.rule {
        Rule::DeadLetter if digest.count == 1 && task.is_some() => {
            format!("tasks/{}", super::sign::query_encoded(task.unwrap_or_default()))
        }
        Rule::DeadLetter => format!("dead_letters?type={subject}"),
        Rule::DeadLetters => "dead_letters".to_owned(),
        Rule::Missed | Rule::Overdue => format!("schedules/{subject}"),
        Rule::Backlog | Rule::Canary => "pools".to_owned(),
        Rule::NoWorker | Rule::WorkerLost | Rule::Heartbeat => "workers".to_owned(),
        Rule::Ping => "pings".to_owned(),
        Rule::Invariant => "certificate".to_owned(),
        _ => "status".to_owned(),
    };
    api(url, &path)
}

fn api(url: &str, path: &str) -> String {
    format!("{}/api/v1/{path}", url.trim_end_matches('/'))
}

/// An instant to the second.
pub(super) fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Marks that turn the direction of a text, and what takes no room.
const fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        | '\u{feff}')
}

/// The same sign, as a chat's markup does not know it.
fn fullwidth(c: char) -> Option<char> {
    char::from_u32(c as u32 - 0x20 + 0xff00)
}

/// A word of a shell command.
fn shell(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./:@%+=,".contains(c);
    if !word.is_empty() && word.chars().all(plain) && !word.starts_with('-') {
        return word.to_owned();
    }
    let clean: String = word.chars().filter(|c| !c.is_control() && !is_invisible(*c)).collect();
    format!("'{}'", clean.replace('\'', r"'\''"))
}

/// Cuts at a character, so that the whole has at most `bytes` bytes, and says so.
pub fn cut(text: &str, bytes: usize, lang: Lang) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    let note = match lang {
        Lang::En => " … (cut)",
        Lang::ZhCn => "……（已截断）",
    };
    let mut end = bytes.saturating_sub(note.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{note}", &text[..end])
}

impl Text {
    /// Everything in `bytes` bytes. What to do next and the link are kept when something must go.
    pub fn plain(&self, bytes: usize, lang: Lang) -> String {
        let mut tail = String::new();
        for command in &self.next {
            let _ = write!(tail, "\n$ {command}");
        }
        if let Some(link) = &self.link {
            let _ = write!(tail, "\n{link}");
        }
        let head = format!("{}\n{}", self.title, self.body);
        let room = bytes.saturating_sub(tail.len());
        cut(&format!("{}{tail}", cut(head.trim_end(), room, lang)), bytes, lang)
    }

    /// The same without the title.
    pub fn rest(&self, bytes: usize, lang: Lang) -> String {
        let title = Self { title: String::new(), ..self.clone() };
        title.plain(bytes, lang).trim_start().to_owned()
    }
}
