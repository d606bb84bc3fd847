//! The scripts, one file each. A script is one step for everybody who looks.

use redis::Script;

#[derive(Debug)]
pub(super) struct Scripts {
    pub(super) take: Script,
    pub(super) push: Script,
    pub(super) know: Script,
    pub(super) info: Script,
    pub(super) journal: Script,
    pub(super) journalled: Script,
}

impl Default for Scripts {
    fn default() -> Self {
        Self {
            take: Script::new(include_str!("lua/take.lua")),
            push: Script::new(include_str!("lua/push.lua")),
            know: Script::new(include_str!("lua/know.lua")),
            info: Script::new(include_str!("lua/info.lua")),
            journal: Script::new(include_str!("lua/journal.lua")),
            journalled: Script::new(include_str!("lua/journalled.lua")),
        }
    }
}
