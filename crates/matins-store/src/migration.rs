//! Steps of a schema, whatever the store.

/// One step of the schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Migration {
    pub version: u32,
    pub name: &'static str,
    pub sql: &'static str,
}

/// What happens to pending steps when a store is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Migrate {
    #[default]
    Auto,
    /// The same, but makes no store where there is none.
    Existing,
    /// Refuses to open.
    Manual,
}

impl Migration {
    /// FNV-1a, 64 bits: guards against accidents, not against forgers.
    pub(crate) fn checksum(&self) -> String {
        let hash = self.sql.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        format!("{hash:016x}")
    }
}
