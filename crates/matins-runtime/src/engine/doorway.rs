//! What a node's file says that others go by: the limits of types, which hold over all nodes, and
//! the pools and sizes for those who enqueue in the database itself.
//!
//! Several nodes may have different files. Each writes what its own names and takes away only what
//! it wrote itself before: a note in the store keeps that over restarts. Of two that disagree, the
//! one that started or reloaded last is followed.

use std::collections::BTreeMap;

use matins_core::limits::Limits;
use matins_core::store::{SettingChange, StoreError};
use matins_core::task::Name;

use super::Core;

type Routes = BTreeMap<Name, Name>;

pub(super) async fn write(core: &Core) -> Result<(), StoreError> {
    // A one-task worker of the command line leaves to the servers what is theirs.
    let (rules, known) = (core.client.rules(), core.store().settings().await?);
    let limits = rules.type_limits();
    if !limits.iter().all(|limit| known.limits.get(&limit.kind) == Some(limit)) {
        core.store().change_setting(SettingChange::Limits(limits), None).await?;
    }
    if core.config.only.is_some() {
        return Ok(());
    }
    let sizes = sizes(&rules.limits);
    if known.sizes != sizes {
        core.store().change_setting(SettingChange::Sizes(sizes), None).await?;
    }
    let note = format!("routes:{}", core.config.node_id);
    let before = core.store().note(&note).await?;
    let before: Routes =
        before.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    let routes = rules.routes();
    let changes = changes(&before, &routes, &known.routes);
    if !changes.is_empty() {
        core.store().change_setting(SettingChange::Routes(changes), None).await?;
    }
    if before != routes {
        let text = serde_json::to_string(&routes)
            .map_err(|error| StoreError::Broken(format!("routes: {error}")))?;
        core.store().put_note(&note, &text).await?;
    }
    Ok(())
}

fn sizes(limits: &Limits) -> BTreeMap<Name, u64> {
    [
        ("payload_bytes", limits.payload_bytes),
        ("result_bytes", limits.result_bytes),
        ("key_bytes", limits.key_bytes),
    ]
    .into_iter()
    .map(|(name, size)| (name.into(), size as u64))
    .collect()
}

/// What makes of the stored routes those that this node wants, where it `wrote` others `before`.
fn changes(before: &Routes, wanted: &Routes, stored: &Routes) -> BTreeMap<Name, Option<Name>> {
    let gone = before
        .iter()
        .filter(|(kind, pool)| !wanted.contains_key(*kind) && stored.get(*kind) == Some(*pool));
    let new = wanted.iter().filter(|(kind, pool)| stored.get(*kind) != Some(*pool));
    let new = new.map(|(kind, pool)| (kind.clone(), Some(pool.clone())));
    gone.map(|(kind, _)| (kind.clone(), None)).chain(new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes(pairs: &[(&str, &str)]) -> Routes {
        pairs.iter().map(|(kind, pool)| ((*kind).into(), (*pool).into())).collect()
    }

    #[test]
    fn a_node_takes_away_only_what_it_wrote_itself() {
        let before = routes(&[("gone", "io"), ("moved", "io"), ("kept", "io"), ("taken", "io")]);
        let wanted = routes(&[("moved", "cpu"), ("kept", "io"), ("new", "cpu")]);
        let stored = routes(&[
            ("gone", "io"),
            ("moved", "io"),
            ("kept", "io"),
            ("taken", "another's"),
            ("another's", "cpu"),
        ]);
        let expected: BTreeMap<Name, Option<Name>> = [
            ("gone".into(), None),
            ("moved".into(), Some("cpu".into())),
            ("new".into(), Some("cpu".into())),
        ]
        .into();
        assert_eq!(changes(&before, &wanted, &stored), expected);
        assert!(changes(&wanted, &wanted, &wanted).is_empty(), "nothing is written twice");
    }
}
