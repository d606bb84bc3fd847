//! Holds an answer against the schema that the API's own description gives for it.

use std::sync::LazyLock;

use serde_json::Value;

static DOCUMENT: LazyLock<Value> = LazyLock::new(matins_server::openapi::document);

/// Panics when the description does not know the answer, or knows another one.
pub(crate) fn check(method: &str, path: &str, status: u16, kind: &str, body: &[u8]) {
    let Some((pattern, operations)) = find(path, &method.to_lowercase()) else { return };
    let answer = &operations[method.to_lowercase()]["responses"][status.to_string()];
    assert!(answer.is_object(), "{method} {pattern} does not declare {status}");
    let kind = kind.split(';').next().unwrap_or_default();
    if kind.is_empty() {
        assert!(body.is_empty(), "{method} {pattern} {status}: a body without a type");
        return;
    }
    let content = &answer["content"][kind];
    assert!(content.is_object(), "{method} {pattern} {status} does not declare {kind}");
    if kind.ends_with("json") {
        let _: &serde_json::value::RawValue =
            serde_json::from_slice(body).expect("the answer is JSON");
        // What is too deep or too large for the reader is not for the server.
        let Ok(value) = serde_json::from_slice::<Value>(body) else { return };
        if let Err(error) = validate(&content["schema"], &value, "") {
            panic!("{method} {pattern} {status}: {error}\n{value:#}");
        }
    }
}

/// The described path that matches, fixed ones first.
fn find(path: &str, method: &str) -> Option<(&'static str, &'static Value)> {
    let path = path.split('?').next().unwrap_or_default();
    let matches = |pattern: &str| {
        pattern.split('/').count() == path.split('/').count()
            && pattern.split('/').zip(path.split('/')).all(|(p, s)| p == s || p.starts_with('{'))
    };
    let paths = DOCUMENT["paths"].as_object().unwrap();
    let mut found: Vec<_> =
        paths.iter().filter(|(p, o)| matches(p) && o[method].is_object()).collect();
    found.sort_by_key(|(pattern, _)| pattern.matches('{').count());
    found.first().map(|(pattern, operations)| (pattern.as_str(), *operations))
}

fn validate(schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    let Some(schema) = schema.as_object() else { return Ok(()) };
    if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
        let target = DOCUMENT.pointer(reference.trim_start_matches('#'));
        validate(target.ok_or_else(|| format!("{reference} leads nowhere"))?, value, at)?;
    }
    if let Some(kinds) = schema.get("type") {
        let is = |kind: &Value| match kind.as_str().unwrap() {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "integer" => value.is_i64() || value.is_u64(),
            "number" => value.is_number(),
            "boolean" => value.is_boolean(),
            "null" => value.is_null(),
            other => panic!("unknown type {other}"),
        };
        let fits = match kinds {
            Value::Array(kinds) => kinds.iter().any(is),
            kind => is(kind),
        };
        if !fits {
            return Err(format!("{at}: expected {kinds}, got {value}"));
        }
    }
    if let Some(words) = schema.get("enum").and_then(Value::as_array)
        && !words.contains(value)
    {
        return Err(format!("{at}: {value} is none of {words:?}"));
    }
    if schema.get("const").is_some_and(|word| word != value) {
        return Err(format!("{at}: {value} is not {}", schema["const"]));
    }
    for key in ["anyOf", "oneOf"] {
        if let Some(choices) = schema.get(key).and_then(Value::as_array) {
            let errors: Vec<String> =
                choices.iter().filter_map(|choice| validate(choice, value, at).err()).collect();
            if errors.len() == choices.len() {
                return Err(format!("{at}: fits none of its forms: {}", errors.join("; ")));
            }
        }
    }
    for part in schema.get("allOf").and_then(Value::as_array).into_iter().flatten() {
        validate(part, value, at)?;
    }
    validate_members(schema, value, at)
}

fn validate_members(
    schema: &serde_json::Map<String, Value>,
    value: &Value,
    at: &str,
) -> Result<(), String> {
    if let (Some(items), Some(values)) = (schema.get("items"), value.as_array()) {
        for (n, value) in values.iter().enumerate() {
            validate(items, value, &format!("{at}[{n}]"))?;
        }
    }
    let Some(members) = value.as_object() else { return Ok(()) };
    for name in schema.get("required").and_then(Value::as_array).into_iter().flatten() {
        if !members.contains_key(name.as_str().unwrap()) {
            return Err(format!("{at}: {name} is missing"));
        }
    }
    let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
        return Ok(());
    };
    for (name, value) in members {
        match properties.get(name) {
            Some(property) => validate(property, value, &format!("{at}.{name}"))?,
            None => match schema.get("additionalProperties") {
                Some(rest) if rest.is_object() => validate(rest, value, &format!("{at}.{name}"))?,
                _ => return Err(format!("{at}: {name} is not described")),
            },
        }
    }
    Ok(())
}
