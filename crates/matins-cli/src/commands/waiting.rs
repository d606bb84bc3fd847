//! What somebody who waits for a task is told meanwhile: each thing once, on standard error.

use std::time::Duration;

use tokio::time::Instant;

use crate::door::{Answer, Request};
use crate::failure::Result;
use crate::output::{self, text};
use crate::session::Session;
use crate::views::Why;

/// After this long without an end, it is said why.
pub(super) const WHY_AFTER: Duration = Duration::from_secs(3);

pub(super) struct Waiting<'a> {
    session: &'a Session,
    id: &'a str,
    began: Instant,
    said_why: bool,
    said_away: bool,
}

impl<'a> Waiting<'a> {
    pub(super) fn new(session: &'a Session, id: &'a str) -> Self {
        Self { session, id, began: Instant::now(), said_why: false, said_away: false }
    }

    /// The task as it is. Nothing while the store is away: it is waited for, too.
    pub(super) async fn look(&mut self) -> Result<Option<Answer>> {
        let answer = self.session.door.ask(Request::get(&["tasks", self.id])).await?;
        if answer.status == 503 {
            if !std::mem::replace(&mut self.said_away, true) {
                let why = answer.accepted().err().and_then(|failure| failure.message);
                let why = text::line(&why.unwrap_or_default());
                output::note(&format!("waiting for the store to come back: {why}"));
            }
            return Ok(None);
        }
        if self.session.out.json && answer.status >= 400 {
            answer.print()?;
        }
        let answer = answer.accepted()?;
        if self.began.elapsed() >= WHY_AFTER {
            self.say_why().await;
        }
        Ok(Some(answer))
    }

    /// Why it does not begin.
    pub(super) async fn say_why(&mut self) {
        if std::mem::replace(&mut self.said_why, true) {
            return;
        }
        let request = Request::get(&["tasks", self.id, "why"]);
        let Ok(answer) = self.session.door.ask(request).await else { return };
        if let Ok(why) = answer.decode::<Why>()
            && why.state == "pending"
        {
            output::note(&format!("waiting: {}", text::line(&why.detail)));
        }
    }
}
