//! Payloads written in YAML, as JSON text. A number stays the digits it was written as, so that
//! no integer is too large; what JSON cannot say is refused instead of rounded.

use matins_core::Json;

use super::cursor::Cursor;
use super::yaml::{Scalar, Value};

pub(crate) fn payload(at: &Cursor<'_>) -> Option<Json> {
    let mut text = String::new();
    write(at, &mut text)?;
    match Json::parse(&text) {
        Ok(json) => Some(json),
        Err(error) => at.fail(format!("cannot be written as JSON: {error}")),
    }
}

fn write(at: &Cursor<'_>, out: &mut String) -> Option<()> {
    match &at.node.value {
        Value::Scalar(_) if at.node.is_null() => {
            out.push_str("null");
            Some(())
        }
        Value::Scalar(scalar) => write_scalar(at, scalar, out),
        Value::List(_) => {
            let items = at.list(|item| {
                let mut text = String::new();
                write(item, &mut text).map(|()| text)
            })?;
            out.push('[');
            out.push_str(&items.join(","));
            out.push(']');
            Some(())
        }
        Value::Map(_) => {
            let mut parts = Vec::new();
            for (key, entry) in at.named()? {
                let mut text = Json::string(&key.text).as_str().to_owned();
                text.push(':');
                if write(&entry, &mut text).is_some() {
                    parts.push(text);
                }
            }
            out.push('{');
            out.push_str(&parts.join(","));
            out.push('}');
            Some(())
        }
    }
}

fn write_scalar(at: &Cursor<'_>, scalar: &Scalar, out: &mut String) -> Option<()> {
    let text = &scalar.text;
    if !scalar.plain {
        out.push_str(Json::string(text).as_str());
    } else if text == "true" || text == "false" || is_json_number(text) {
        out.push_str(text);
    } else if is_yaml_number(text) {
        let problem = at.problem(format!("{text} is a number that JSON cannot keep as written"));
        at.reader.note(problem.hint("write it in decimal digits, or quote it to make it text"));
        return None;
    } else {
        out.push_str(Json::string(text).as_str());
    }
    Some(())
}

fn is_json_number(text: &str) -> bool {
    text.starts_with(|c: char| c == '-' || c.is_ascii_digit()) && Json::parse(text).is_ok()
}

/// Numbers of YAML's core schema.
fn is_yaml_number(text: &str) -> bool {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let radix = |prefix: &str, radix: u32| {
        let digits = text.strip_prefix(prefix);
        digits.is_some_and(|d| !d.is_empty() && d.chars().all(|c| c.is_digit(radix)))
    };
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (unsigned, None),
    };
    let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    let decimal = match mantissa.split_once('.') {
        Some((whole, fraction)) => {
            digits(whole) && digits(fraction) && !(whole.is_empty() && fraction.is_empty())
        }
        None => !mantissa.is_empty() && digits(mantissa),
    };
    let exponent = exponent.is_none_or(|e| {
        let e = e.strip_prefix(['-', '+']).unwrap_or(e);
        !e.is_empty() && digits(e)
    });
    (decimal && exponent)
        || radix("0x", 16)
        || radix("0o", 8)
        || matches!(unsigned, ".inf" | ".Inf" | ".INF")
        || matches!(text, ".nan" | ".NaN" | ".NAN")
}
