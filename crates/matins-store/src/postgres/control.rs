//! What is short and must not wait behind the work: beats, pings.
//!
//! It goes through the session that listens, which is thereby seen to be alive, so a node needs no
//! connection more for it; through another one while there is none, or where nobody listens.

use std::sync::Arc;

use tokio_postgres::Row;

use super::ear::Ear;
use super::error::Res;
use super::link::{Param, Pool, REPEATS};
use super::sql::Sql;

#[derive(Debug)]
pub(super) struct Control {
    pub(super) ear: Ear,
    spare: Arc<Pool>,
}

impl Control {
    pub(super) fn new(ear: Ear, spare: Arc<Pool>) -> Self {
        Self { ear, spare }
    }

    pub(super) async fn rows(&self, sql: Sql, params: &[Param<'_>]) -> Res<Vec<Row>> {
        self.spare.may_speak()?;
        for _ in 0..REPEATS {
            match self.ear.ask(sql, params).await {
                Some(Err(failure)) if failure.is_collision() => {}
                Some(answer) => return answer,
                None => break,
            }
        }
        self.spare.rows(sql, params).await
    }

    pub(super) async fn one(&self, sql: Sql, params: &[Param<'_>]) -> Res<Option<Row>> {
        Ok(self.rows(sql, params).await?.into_iter().next())
    }

    pub(super) fn close(&self) {
        self.ear.close();
        self.spare.close();
    }
}
