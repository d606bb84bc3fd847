//! Lists come in pages. A cursor is an opaque position that later writes do not move.

/// What part of a list is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageRequest {
    pub limit: usize,
    pub cursor: Option<String>,
}

impl Default for PageRequest {
    fn default() -> Self {
        Self { limit: 50, cursor: None }
    }
}

/// Most items of one page.
pub const PAGE_MAX: usize = 1_000;

/// Part of a list. A page may be short, or empty, and still have a `next`: a store looks at a
/// bounded number of rows per page.
#[derive(Debug, Clone, PartialEq)]
pub struct Page<T> {
    pub items: Vec<T>,
    pub next: Option<String>,
}

impl<T> Page<T> {
    pub fn map<U>(self, f: impl FnMut(T) -> U) -> Page<U> {
        Page { items: self.items.into_iter().map(f).collect(), next: self.next }
    }
}
