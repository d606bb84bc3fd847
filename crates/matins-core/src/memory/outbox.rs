//! Alerts on their way to people.

use async_trait::async_trait;

use super::{MemoryStore, Model, paging};
use crate::alert::Alert;
use crate::page::{Page, PageRequest};
use crate::store::{Outbox, Result, Tray, Turn};

impl Model {
    pub(super) fn raise(&mut self, alert: Alert, read: bool) {
        let number = self.next_number();
        self.alerts.insert(number, (alert, read));
    }

    fn tray(&mut self, turn: &Turn) -> Option<Tray> {
        let own = match &self.teller {
            Some((teller, until)) if *teller == turn.teller => Some(*until),
            Some((_, until)) if *until >= turn.now => return None,
            _ => None,
        };
        let half = turn.until.duration_since(turn.now) / 2;
        let lasts = own.filter(|until| until.duration_since(turn.now) > half);
        self.teller = Some((turn.teller.clone(), lasts.unwrap_or(turn.until)));
        let unread = self.alerts.iter().filter(|(_, (_, read))| !read);
        let unread = unread.take(turn.limit).map(|(number, (alert, _))| (*number, alert.clone()));
        Some(Tray { state: self.tray.clone(), unread: unread.collect() })
    }

    fn file(&mut self, teller: &str, read: &[u64], state: &str) -> bool {
        if self.teller.as_ref().is_none_or(|(name, _)| name != teller) {
            return false;
        }
        for number in read {
            if let Some((_, read)) = self.alerts.get_mut(number) {
                *read = true;
            }
        }
        self.tray = Some(state.to_owned());
        true
    }
}

#[async_trait]
impl Outbox for MemoryStore {
    async fn raise(&self, alerts: Vec<Alert>, read: bool) -> Result<()> {
        let mut model = self.model();
        for alert in alerts {
            model.raise(alert, read);
        }
        Ok(())
    }

    async fn tray(&self, turn: &Turn) -> Result<Option<Tray>> {
        Ok(self.model().tray(turn))
    }

    async fn file(&self, teller: &str, read: &[u64], state: &str) -> Result<bool> {
        Ok(self.model().file(teller, read, state))
    }

    async fn alerts(&self, page: &PageRequest) -> Result<Page<Alert>> {
        let model = self.model();
        let rows = model.alerts.iter();
        let rows = rows.map(|(number, (alert, _))| ((-(*number as i64), 0), alert.clone()));
        paging::page(rows.collect(), page, "alerts")
    }
}
