//! The answer of a statement as one JSON text: `{"rows": [{…}], "row_count": n}`.
//!
//! Nothing above the limit is kept, but everything is counted: an answer that is too large tells
//! how large it would have been.

use matins_core::Json;
use matins_core::lifecycle::Outcome;

pub(crate) struct Rows {
    text: String,
    row: String,
    count: u64,
    bytes: usize,
    limit: usize,
}

impl Rows {
    pub(crate) fn new(limit: usize) -> Self {
        let text = r#"{"rows":["#.to_owned();
        Self { bytes: text.len(), text, row: String::new(), count: 0, limit }
    }

    /// Adds a row, each of its columns as JSON written by `write`.
    pub(crate) fn add<'n, E>(
        &mut self,
        names: impl Iterator<Item = &'n str>,
        mut write: impl FnMut(usize, &mut String) -> Result<(), E>,
    ) -> Result<(), E> {
        self.row.clear();
        self.row.push(if self.count == 0 { '{' } else { ',' });
        if self.count > 0 {
            self.row.push('{');
        }
        for (index, name) in names.enumerate() {
            if index > 0 {
                self.row.push(',');
            }
            string(&mut self.row, name);
            self.row.push(':');
            write(index, &mut self.row)?;
        }
        self.row.push('}');
        self.count += 1;
        self.bytes += self.row.len();
        if self.bytes <= self.limit {
            self.text.push_str(&self.row);
        } else {
            self.text = String::new();
        }
        Ok(())
    }

    /// `row_count` is what the statement touched; that of a query is what it answered.
    pub(crate) fn finish(mut self, touched: Option<u64>) -> Outcome {
        let tail = format!(r#"],"row_count":{}}}"#, touched.unwrap_or(self.count));
        let bytes = self.bytes + tail.len();
        if bytes > self.limit {
            let result_dropped_bytes = Some(bytes as u64);
            return Outcome::Completed { result: None, result_dropped_bytes };
        }
        self.text.push_str(&tail);
        Outcome::completed(Some(Json::trusted(self.text)), self.limit)
    }
}

/// A JSON string.
pub(crate) fn string(out: &mut String, text: &str) {
    out.push_str(&serde_json::to_string(text).unwrap_or_default());
}

/// A JSON number, or a string where JSON has no number for it.
pub(crate) fn float(out: &mut String, value: f64) {
    match serde_json::Number::from_f64(value) {
        Some(number) => out.push_str(&number.to_string()),
        None if value.is_nan() => out.push_str("\"NaN\""),
        None if value > 0.0 => out.push_str("\"Infinity\""),
        None => out.push_str("\"-Infinity\""),
    }
}

pub(crate) fn bytes(out: &mut String, bytes: &[u8]) {
    use std::fmt::Write as _;
    out.push_str("\"\\\\x");
    for byte in bytes {
        let _ = write!(out, "{byte:02x}");
    }
    out.push('"');
}

/// Two columns of one name would be one in the answer.
pub(crate) fn twice<'n>(names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let mut seen = std::collections::BTreeSet::new();
    names.into_iter().find(|name| !seen.insert(*name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(rows: usize, limit: usize) -> Outcome {
        let mut all = Rows::new(limit);
        for _ in 0..rows {
            let write = |_: usize, out: &mut String| -> Result<(), ()> {
                string(out, "x\"y");
                Ok(())
            };
            all.add(["a"].into_iter(), write).unwrap();
        }
        all.finish(None)
    }

    #[test]
    fn an_answer_is_kept_whole_or_told_by_its_size() {
        let two = r#"{"rows":[{"a":"x\"y"},{"a":"x\"y"}],"row_count":2}"#;
        let kept = |text: &str| Outcome::Completed {
            result: Some(Json::parse(text).unwrap()),
            result_dropped_bytes: None,
        };
        let dropped = |size: usize| Outcome::Completed {
            result: None,
            result_dropped_bytes: Some(size as u64),
        };
        assert_eq!(answer(0, 100), kept(r#"{"rows":[],"row_count":0}"#));
        assert_eq!(answer(2, two.len()), kept(two));
        assert_eq!(answer(2, two.len() - 1), dropped(two.len()));
        assert_eq!(answer(2, 12), dropped(two.len()));
    }

    #[test]
    fn what_json_has_no_number_for_is_a_string() {
        let mut out = String::new();
        for value in [1.5, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            float(&mut out, value);
            out.push(' ');
        }
        bytes(&mut out, &[0, 255]);
        assert_eq!(out, r#"1.5 "NaN" "Infinity" "-Infinity" "\\x00ff""#);
    }
}
