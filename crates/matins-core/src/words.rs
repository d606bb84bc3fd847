//! Closed sets of words: what the wire, the store and people call the variants of an enum.

/// A word that is not in the set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a known {what}")]
pub struct UnknownWord {
    pub what: &'static str,
    pub text: String,
}

/// Gives a fieldless enum its words, in one place: `ALL`, `as_str`, `Display` and `FromStr`.
macro_rules! words {
    ($type:ident, $what:literal, $($variant:ident = $word:literal),+ $(,)?) => {
        impl $type {
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::words::UnknownWord;

            fn from_str(text: &str) -> Result<Self, $crate::words::UnknownWord> {
                match text {
                    $($word => Ok(Self::$variant),)+
                    _ => Err($crate::words::UnknownWord { what: $what, text: text.to_owned() }),
                }
            }
        }
    };
}

pub(crate) use words;
