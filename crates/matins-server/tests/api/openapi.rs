//! The description: complete, consistent, and committed as it is.

use matins_server::operations;
use serde_json::Value;

use crate::harness::{SHOP, Server};

#[test]
fn the_committed_document_is_fresh() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/openapi.json");
    let fresh = matins_server::openapi::text();
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        std::fs::write(path, fresh).unwrap();
    }
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        committed == fresh,
        "docs/reference/openapi.json is stale: run this test with UPDATE_REFERENCE=1"
    );
}

#[test]
fn every_operation_is_described_once_and_every_reference_leads_somewhere() {
    let document = matins_server::openapi::document();
    let mut ids = std::collections::BTreeSet::new();
    for operation in operations::table() {
        let method = operation.method.as_str().to_lowercase();
        let described = &document["paths"][operation.path][&method];
        assert_eq!(described["operationId"], operation.id);
        assert!(ids.insert(operation.id), "{} is there twice", operation.id);
    }
    let described: usize =
        document["paths"].as_object().unwrap().values().map(|p| p.as_object().unwrap().len()).sum();
    assert_eq!(described, ids.len());
    check_references(&document, &document);
}

fn check_references(document: &Value, value: &Value) {
    match value {
        Value::Object(members) => {
            if let Some(reference) = members.get("$ref").and_then(Value::as_str) {
                let target = document.pointer(reference.trim_start_matches('#'));
                assert!(target.is_some(), "{reference} leads nowhere");
            }
            members.values().for_each(|member| check_references(document, member));
        }
        Value::Array(items) => items.iter().for_each(|item| check_references(document, item)),
        _ => {}
    }
}

#[test]
fn queries_and_bodies_are_described() {
    let document = matins_server::openapi::document();
    let list = &document["paths"]["/api/v1/tasks"]["get"]["parameters"];
    let names: Vec<&str> =
        list.as_array().unwrap().iter().map(|p| p["name"].as_str().unwrap()).collect();
    for name in
        ["state", "type", "pool", "tag", "schedule", "execution_key", "q", "limit", "cursor"]
    {
        assert!(names.contains(&name), "{name} of {names:?}");
    }
    let batch = &document["paths"]["/api/v1/tasks/batch"]["post"]["requestBody"]["content"];
    assert!(batch["application/json"].is_object() && batch["application/x-ndjson"].is_object());
    let put = &document["components"]["schemas"]["ScheduleBody"];
    assert_eq!(put["required"], serde_json::json!(["schedule", "type"]));
    assert_eq!(put["properties"]["grace"]["default"], 60);
    assert_eq!(put["properties"]["overlap"]["default"], "skip");
}

#[tokio::test]
async fn the_document_is_served_without_a_token() {
    let server = Server::new();
    let answer = server.ask(SHOP, "GET", "/api/openapi.json", "").await.is(200);
    assert_eq!(answer.json(), matins_server::openapi::document());
}
