//! The scripts, one file each. A script is one step for everybody who looks.

use redis::Script;

#[derive(Debug)]
pub(super) struct Scripts {
    pub(super) take: Script,
    pub(super) push: Script,
    pub(super) cut: Script,
    pub(super) know: Script,
    pub(super) info: Script,
    pub(super) journal: Script,
    pub(super) journalled: Script,
    pub(super) tell: Script,
    pub(super) mirror: Mirror,
}

/// Those of the mirror, which have a beginning in common.
#[derive(Debug)]
pub(super) struct Mirror {
    pub(super) take: Script,
    pub(super) head: Script,
    pub(super) push: Script,
    pub(super) drop: Script,
    pub(super) due: Script,
    pub(super) claim: Script,
    pub(super) fire: Script,
    pub(super) renew: Script,
    pub(super) finish: Script,
    pub(super) lapsed: Script,
    pub(super) lapse: Script,
    pub(super) withdraw: Script,
    pub(super) cancel: Script,
    pub(super) pause: Script,
    pub(super) calm: Script,
    pub(super) look: Script,
}

impl Default for Scripts {
    fn default() -> Self {
        Self {
            take: Script::new(include_str!("lua/take.lua")),
            push: Script::new(include_str!("lua/push.lua")),
            cut: Script::new(include_str!("lua/cut.lua")),
            know: Script::new(include_str!("lua/know.lua")),
            info: Script::new(include_str!("lua/info.lua")),
            journal: Script::new(include_str!("lua/journal.lua")),
            journalled: Script::new(include_str!("lua/journalled.lua")),
            tell: Script::new(include_str!("lua/tell.lua")),
            mirror: Mirror::default(),
        }
    }
}

macro_rules! of_the_mirror {
    ($name:literal) => {
        Script::new(concat!(
            include_str!("lua/mirror/common.lua"),
            include_str!(concat!("lua/mirror/", $name, ".lua"))
        ))
    };
}

impl Default for Mirror {
    fn default() -> Self {
        Self {
            take: of_the_mirror!("take"),
            head: Script::new(concat!(
                include_str!("lua/mirror/common.lua"),
                "local function hints(KEYS, ARGV)\n",
                include_str!("lua/take.lua"),
                "end\nlocal function take(ARGV)\n",
                include_str!("lua/mirror/take.lua"),
                "end\n",
                include_str!("lua/mirror/head.lua")
            )),
            push: of_the_mirror!("push"),
            drop: of_the_mirror!("drop"),
            due: of_the_mirror!("due"),
            claim: of_the_mirror!("claim"),
            fire: of_the_mirror!("fire"),
            renew: of_the_mirror!("renew"),
            finish: of_the_mirror!("finish"),
            lapsed: of_the_mirror!("lapsed"),
            lapse: of_the_mirror!("lapse"),
            withdraw: of_the_mirror!("withdraw"),
            cancel: of_the_mirror!("cancel"),
            pause: of_the_mirror!("pause"),
            calm: of_the_mirror!("calm"),
            look: Script::new(include_str!("lua/mirror/look.lua")),
        }
    }
}
