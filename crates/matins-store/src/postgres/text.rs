//! Text that may hold any character, U+0000 too, which PostgreSQL cannot store: it is written as
//! U+F8FF U+0030, and U+F8FF itself as U+F8FF U+0031. So equal texts stay equal, and beginnings
//! beginnings.

use std::borrow::Cow;
use std::error::Error;
use std::sync::Arc;

use bytes::BytesMut;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type};

const MARK: char = '\u{f8ff}';

pub(super) fn encode(text: &str) -> Cow<'_, str> {
    if !text.contains(['\0', MARK]) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '\0' => out.extend([MARK, '0']),
            MARK => out.extend([MARK, '1']),
            c => out.push(c),
        }
    }
    Cow::Owned(out)
}

pub(super) fn decode(text: &str) -> Cow<'_, str> {
    if !text.contains(MARK) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            MARK => out.push(if chars.next() == Some('0') { '\0' } else { MARK }),
            c => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// A text to be written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Text<'t>(pub(super) &'t str);

impl ToSql for Text<'_> {
    fn to_sql(
        &self,
        ty: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        <&str as ToSql>::to_sql(&&*encode(self.0), ty, out)
    }

    fn accepts(ty: &Type) -> bool {
        <&str as ToSql>::accepts(ty)
    }

    tokio_postgres::types::to_sql_checked!();
}

/// A text that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Read(pub(super) String);

impl<'a> FromSql<'a> for Read {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(decode(<&str as FromSql>::from_sql(ty, raw)?).into_owned()))
    }

    fn accepts(ty: &Type) -> bool {
        <&str as FromSql>::accepts(ty)
    }
}

impl From<Read> for Arc<str> {
    fn from(read: Read) -> Self {
        read.0.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_comes_back() {
        for text in ["", "plain", "a\0b", "\u{f8ff}", "\u{f8ff}0\0\u{f8ff}1", "中文\0"] {
            assert_eq!(decode(&encode(text)), text);
            assert!(!encode(text).contains('\0'));
        }
    }

    #[test]
    fn different_texts_stay_different_and_beginnings_beginnings() {
        assert_ne!(encode("\0"), encode("\u{f8ff}0"));
        assert!(encode("k\0tail").starts_with(&*encode("k\0")));
    }
}
