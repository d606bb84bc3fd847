//! The `OpenAPI` document, made of the table of operations.

use std::sync::LazyLock;

use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::auth::Access;
use crate::operations::{Content, Operation, table};
use crate::problem::{Code, ProblemView};

/// The whole document.
pub fn document() -> Value {
    let settings = SchemaSettings::draft2020_12()
        .with(|settings| {
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
        })
        .with_transform(RecursiveTransform(without_null_default));
    let mut read = settings.clone().for_deserialize().into_generator();
    let mut written = settings.for_serialize().into_generator();
    let problem = written.subschema_for::<ProblemView<'_>>();
    let mut paths: Map<String, Value> = Map::new();
    for operation in table() {
        let described = describe(&operation, &mut read, &mut written, problem.as_value());
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        path[operation.method.as_str().to_lowercase()] = described;
    }
    let mut schemas = read.take_definitions(true);
    schemas.extend(written.take_definitions(true));
    schemas.sort_keys();
    let codes: Vec<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Matins",
            "version": env!("CARGO_PKG_VERSION"),
            "description": format!(
                "Durable background tasks and cron schedules. Times are RFC 3339 in UTC. \
                 Durations are taken as seconds or texts such as \"5m\", and given in seconds. \
                 In requests null means absent, and unknown fields are refused. Refusals are \
                 problem documents (RFC 9457) with a stable code: {}.",
                codes.join(", ")
            ),
        },
        "servers": [{ "url": "/" }],
        "security": [{ "token": [] }],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
        },
    })
}

/// Absent and null are the same in every request: a default of null says nothing.
fn without_null_default(schema: &mut Schema) {
    if schema.get("default").is_some_and(Value::is_null) {
        schema.remove("default");
    }
}

/// The document as it is committed, printed and served.
pub fn text() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| format!("{:#}\n", document()));
    &TEXT
}

fn describe(
    operation: &Operation,
    read: &mut SchemaGenerator,
    written: &mut SchemaGenerator,
    problem: &Value,
) -> Value {
    let mut described = json!({
        "operationId": operation.id,
        "summary": operation.summary,
        "tags": [operation.id.split('.').next().unwrap_or_default()],
        "x-matins-role": operation.access.as_str(),
        "responses": answers(operation, written, problem),
    });
    let parameters = parameters(operation, read);
    if !parameters.is_empty() {
        described["parameters"] = parameters.into();
    }
    if let Some(shape) = (operation.body)(read) {
        let content: Map<String, Value> = shape
            .content
            .into_iter()
            .map(|(kind, schema)| (kind.to_owned(), json!({ "schema": schema })))
            .collect();
        described["requestBody"] = json!({ "required": shape.required, "content": content });
    }
    match operation.access {
        Access::Open => described["security"] = json!([]),
        // Depends on where the server listens.
        Access::Metrics => described["security"] = json!([{}, { "token": [] }]),
        _ => {}
    }
    described
}

fn parameters(operation: &Operation, read: &mut SchemaGenerator) -> Vec<Value> {
    let named = |part: &str| {
        let name = part.strip_prefix('{')?.strip_suffix('}')?.to_owned();
        Some(json!({
            "name": name, "in": "path", "required": true, "schema": { "type": "string" }
        }))
    };
    let mut parameters: Vec<Value> = operation.path.split('/').filter_map(named).collect();
    let reference = (operation.query)(read);
    let name = reference.get("$ref").and_then(Value::as_str).and_then(|r| r.rsplit('/').next());
    // A query is not a body: its fields are parameters, and its type needs no name.
    let Some(schema) = name.and_then(|name| read.definitions_mut().remove(name)) else {
        return parameters;
    };
    let required: Vec<&str> = match &schema["required"] {
        Value::Array(words) => words.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let mut field = field.clone();
        let description = field.as_object_mut().and_then(|field| field.remove("description"));
        let mut parameter = json!({
            "name": name,
            "in": "query",
            "required": required.contains(&name.as_str()),
            "schema": field,
        });
        if parameter["schema"]["type"] == "array" {
            parameter["style"] = "form".into();
            parameter["explode"] = false.into();
        }
        if let Some(description) = description {
            parameter["description"] = description;
        }
        parameters.push(parameter);
    }
    parameters
}

fn answers(operation: &Operation, written: &mut SchemaGenerator, problem: &Value) -> Value {
    let mut answers: Map<String, Value> = Map::new();
    for (status, what, content) in &operation.answers {
        let (kind, schema) = match content {
            Content::Json(schema) => ("application/json", Some(schema(written).to_value())),
            Content::Events => ("text/event-stream", Some(json!({ "type": "string" }))),
            Content::Bytes => ("application/octet-stream", Some(json!({}))),
            Content::Text => ("application/openmetrics-text", Some(json!({ "type": "string" }))),
            Content::Empty => ("", None),
        };
        let answer =
            answers.entry(status.to_string()).or_insert_with(|| json!({ "description": "" }));
        let said = answer["description"].as_str().unwrap_or_default();
        answer["description"] = [said, what].join(" ").trim().into();
        if let Some(schema) = schema {
            answer["content"][kind] = json!({ "schema": schema });
        }
    }
    for (status, codes) in refusals(operation) {
        let answer =
            answers.entry(status.to_string()).or_insert_with(|| json!({ "description": "" }));
        if answer["description"] == "" {
            answer["description"] = format!("Codes: {}.", codes.join(", ")).into();
        }
        answer["content"]["application/problem+json"] = json!({ "schema": problem });
    }
    answers.into()
}

/// Every code that the operation may be refused with, by status.
fn refusals(operation: &Operation) -> Vec<(u16, Vec<&'static str>)> {
    let mut codes: Vec<Code> = operation.codes.to_vec();
    // Hosts and origins are judged for all but the two that say status words.
    if !matches!(operation.path, "/healthz" | "/readyz") {
        codes.push(Code::Forbidden);
    }
    if operation.access != Access::Open {
        codes.extend([Code::Unauthorized, Code::StoreUnavailable]);
    }
    codes.push(Code::InvalidField);
    if operation.method != axum::http::Method::GET {
        codes.extend([
            Code::InvalidJson,
            Code::TooLarge,
            Code::UnsupportedMediaType,
            Code::RequestTimeout,
        ]);
    }
    codes.push(Code::Internal);
    codes.sort_unstable();
    codes.dedup();
    let mut by_status: Vec<(u16, Vec<&'static str>)> = Vec::new();
    for code in codes {
        match by_status.iter_mut().find(|(status, _)| *status == code.status()) {
            Some((_, words)) => words.push(code.as_str()),
            None => by_status.push((code.status(), vec![code.as_str()])),
        }
    }
    by_status.sort_unstable();
    by_status
}
