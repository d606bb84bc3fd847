//! What Redis lists and the database does not have: hints of no task that is pending there. Only
//! looks: who drops them is the reconciler, and here one shows that it does not.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use matins_core::store::Stray;
use matins_core::task::TaskId;

use super::RedisStore;
use super::hint::Hint;
use super::pusher::{LINE_MAX, Trouble};
use super::reconcile::{EVERY, LATER};

/// Between two looks at what may have been on its way.
const AGAIN: Duration = Duration::from_secs(1);

/// Strays that are told one by one.
const TOLD_MAX: usize = 100;

/// Ids that the database is asked for at once.
const STEP: usize = 1_000;

type Listed = BTreeSet<(String, String)>;

impl RedisStore {
    /// Lines and members that outlast two readings of the reconciler.
    pub(super) async fn find_strays(&self) -> Result<Vec<Stray>, Trouble> {
        let mut strays = self.unknown(self.listed().await?).await?;
        let looks = (EVERY * 2).as_secs();
        for _ in 0..looks {
            if strays.is_empty() {
                break;
            }
            tokio::time::sleep(AGAIN).await;
            let still = self.unknown(self.listed().await?).await?;
            strays.retain(|one| still.contains(one));
        }
        let stray = |(line, member): (String, String)| {
            let task = Hint::id_in(&member).map_or_else(|| member.clone(), |id| id.to_string());
            Stray { place: line, task }
        };
        Ok(strays.into_iter().take(TOLD_MAX).map(stray).collect())
    }

    async fn listed(&self) -> Result<Listed, Trouble> {
        let limit = self.link.times.background;
        let mut known = redis::cmd("HKEYS");
        known.arg(self.link.key("task:known"));
        let known: Vec<String> = self.link.command(limit, &known).await?;
        let pools = self.store.pools().await?;
        let mut lines: BTreeSet<String> = pools.iter().map(ToString::to_string).collect();
        lines.extend(known.into_iter().filter(|field| field != LATER));
        let lines = lines.into_iter().map(|pool| format!("task:pending:{pool}"));
        let mut listed = Listed::new();
        for line in lines.chain(["task:delayed".to_owned()]) {
            let mut range = redis::cmd("ZRANGE");
            range.arg(self.link.key(&line)).arg(0).arg(LINE_MAX);
            let members: Vec<String> = self.link.command(limit, &range).await?;
            listed.extend(members.into_iter().map(|member| (line.clone(), member)));
        }
        Ok(listed)
    }

    /// Those of which the database has no pending task.
    async fn unknown(&self, listed: Listed) -> Result<Listed, Trouble> {
        let ids: Vec<TaskId> =
            listed.iter().filter_map(|(_, member)| Hint::id_in(member)).collect();
        let mut pending: HashSet<TaskId> = HashSet::new();
        for some in ids.chunks(STEP) {
            pending.extend(self.store.places(some).await?.iter().map(|hint| hint.id));
        }
        let is_known = |member: &str| Hint::id_in(member).is_some_and(|id| pending.contains(&id));
        Ok(listed.into_iter().filter(|(_, member)| !is_known(member)).collect())
    }
}
