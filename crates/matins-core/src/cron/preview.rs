//! The next fires of an expression, for people to check before they trust it.

use jiff::Timestamp;
use serde::Serialize;

use super::{Fire, Recurrence};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Note {
    /// The local time does not exist that day; this is the first instant after it.
    DstGap,
    /// The local time exists twice that day.
    DstFold,
    /// Other local times fell into the same gap and fire together with this one.
    Merged,
}

/// One line of a preview.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PreviewFire {
    pub utc: Timestamp,
    /// The reading of the zone's clock at that instant, with its offset.
    pub local: String,
    pub notes: Vec<Note>,
}

impl Fire {
    pub fn notes(&self) -> Vec<Note> {
        [
            (self.in_gap, Note::DstGap),
            (self.in_fold, Note::DstFold),
            (self.merged.is_some(), Note::Merged),
        ]
        .into_iter()
        .filter_map(|(holds, note)| holds.then_some(note))
        .collect()
    }
}

/// The first `count` fires strictly after `after`.
pub fn preview(recurrence: &Recurrence, after: Timestamp, count: usize) -> Vec<PreviewFire> {
    let fires = recurrence.between(after, Timestamp::MAX).take(count);
    fires
        .map(|fire| PreviewFire {
            utc: fire.time,
            local: {
                let offset = recurrence.zone().rules().to_offset(fire.time);
                fire.time.display_with_offset(offset).to_string()
            },
            notes: fire.notes(),
        })
        .collect()
}
