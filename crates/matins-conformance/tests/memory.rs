//! The in-memory store keeps every contract, and every contract is asked of it.

use std::sync::Arc;

use matins_core::memory::MemoryStore;
use matins_core::store::Store;
use uuid::Uuid;

async fn open() -> (Arc<dyn Store>, ()) {
    (Arc::new(MemoryStore::new(Uuid::from_u128(1))), ())
}

matins_conformance::suite!(open);

/// A contract that is missing from the list would hold nobody to anything.
#[test]
fn every_contract_is_in_the_suite() {
    let list = include_str!("../src/lib.rs");
    let modules = [
        include_str!("../src/accept.rs"),
        include_str!("../src/acts.rs"),
        include_str!("../src/claim.rs"),
        include_str!("../src/end.rs"),
        include_str!("../src/outbox.rs"),
        include_str!("../src/records.rs"),
        include_str!("../src/timetables.rs"),
        include_str!("../src/upkeep.rs"),
        include_str!("../src/workers.rs"),
    ];
    let functions = modules.iter().flat_map(|text| text.lines());
    let contracts = functions.filter_map(|line| line.strip_prefix("pub async fn "));
    let mut count = 0;
    for name in contracts.filter_map(|rest| rest.split('(').next()) {
        let listed = list.lines().filter(|line| line.trim() == format!("{name},")).count();
        assert_eq!(listed, 1, "{name}");
        count += 1;
    }
    assert!(count > 100, "{count} contracts found");
}

/// Two models answer alike, so whatever the comparison finds lies in the other store; and what
/// random steps leave behind is whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_is_like_itself() {
    matins_conformance::model::compare(60, open).await;
}
