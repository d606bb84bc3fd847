//! Tokens that are kept in the store. Those of the configuration are not listed here: they are
//! managed by their file.

use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use matins_core::request::check_name;
use matins_core::store::Token;

use super::{Content, NoQuery, Operation, operation};
use crate::api::{Api, json};
use crate::auth::{Access, hash_hex, new_secret};
use crate::call::Call;
use crate::call::body::{Json, Nothing, Object};
use crate::problem::{Code, Problem, Result};
use crate::wire::record::{NewTokenView, TokenBody, TokenList, TokenView};

impl Object for TokenBody {}

pub(super) fn operations() -> Vec<Operation> {
    vec![
        operation(
            "token.list",
            Method::GET,
            "/api/v1/tokens",
            Access::Admin,
            "List stored tokens by name",
        )
        .answers::<TokenList<'_>>(200, "Without secrets, which nobody keeps.")
        .by(list),
        operation("token.create", Method::POST, "/api/v1/tokens", Access::Admin, "Make a token")
            .answers::<NewTokenView<'_>>(201, "With its secret, this one time.")
            .fails(&[Code::DuplicateKey])
            .by(create),
        operation(
            "token.revoke",
            Method::DELETE,
            "/api/v1/tokens/{name}",
            Access::Admin,
            "Revoke a token",
        )
        .answers_with(204, "Revoked: here at once, on other nodes within 5 s.", Content::Empty)
        .fails(&[Code::NotFound])
        .by(revoke),
    ]
}

async fn list(api: Api, _: Call<NoQuery, Nothing>) -> Result<Response> {
    let tokens = api.client().store().tokens().await?;
    json(200, &TokenList { tokens: tokens.iter().map(TokenView::from).collect() })
}

async fn create(api: Api, call: Call<NoQuery, Json<TokenBody>>) -> Result<Response> {
    let body = &call.body.0;
    check_name("name", &body.name)?;
    if !body.types.is_empty() && !body.role.takes_types() {
        let message = format!("tokens of the role {} are not limited to types", body.role);
        return Err(Problem::field("types", message));
    }
    for (n, kind) in body.types.iter().enumerate() {
        check_name(&format!("types[{n}]"), kind)?;
    }
    let tokens = api.client().store().tokens().await?;
    if tokens.iter().any(|token| token.name == body.name) {
        let detail = format!("there is a token {} already", body.name);
        return Err(Problem::new(Code::DuplicateKey, detail).hint("revoke it first"));
    }
    let secret = new_secret();
    let token = Token {
        name: body.name.clone(),
        role: body.role.as_str().to_owned(),
        types: body.types.clone(),
        hash: hash_hex(&secret),
        created_at: api.client().now(),
        created_by: call.who().to_owned(),
    };
    api.client().put_token(&token, call.who()).await?;
    api.auth().tokens_changed().await;
    json(201, &NewTokenView { token: TokenView::from(&token), secret: &secret })
}

async fn revoke(api: Api, call: Call<NoQuery, Nothing>) -> Result<Response> {
    api.client().revoke_token(call.param("name"), call.who()).await?;
    api.auth().tokens_changed().await;
    Ok(StatusCode::NO_CONTENT.into_response())
}
