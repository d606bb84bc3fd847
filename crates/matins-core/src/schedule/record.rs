//! What became of each occurrence, written down as one look goes along.

use jiff::Timestamp;

use super::{Balance, Occurrence, OccurrenceKind, OccurrenceOutcome, Reason, ScheduleState};
use crate::cron::{Label, LabelRange};
use crate::task::TaskId;

/// Why a run of occurrences did not fire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Coalesced(Reason),
    Skipped(Reason),
    Missed(Reason),
}

impl Verdict {
    const fn parts(self) -> (OccurrenceOutcome, Reason) {
        match self {
            Self::Coalesced(reason) => (OccurrenceOutcome::Coalesced, reason),
            Self::Skipped(reason) => (OccurrenceOutcome::Skipped, reason),
            Self::Missed(reason) => (OccurrenceOutcome::Missed, reason),
        }
    }
}

pub(super) struct Recorder {
    blank: Occurrence,
    pub occurrences: Vec<Occurrence>,
    pub balance: Balance,
}

impl Recorder {
    pub(super) fn new(state: &ScheduleState, kind: OccurrenceKind) -> Self {
        let blank = Occurrence {
            schedule_uid: state.uid,
            schedule: state.spec.name.as_str().into(),
            label: String::new(),
            label_to: None,
            count: 1,
            kind,
            time: state.cursor,
            outcome: OccurrenceOutcome::Fired,
            reason: None,
            task_id: None,
            fired_at: None,
        };
        Self { blank, occurrences: Vec::new(), balance: state.balance }
    }

    pub(super) fn fired(&mut self, label: Label, time: Timestamp, task: TaskId, now: Timestamp) {
        self.balance.fired += 1;
        self.occurrences.push(Occurrence {
            label: label.to_string(),
            time,
            task_id: Some(task),
            fired_at: Some(now),
            ..self.blank.clone()
        });
    }

    /// Adds labels with one verdict; a run that goes on where the last record ended extends it.
    pub(super) fn passed_over(&mut self, labels: LabelRange, time: Timestamp, verdict: Verdict) {
        let (outcome, reason) = verdict.parts();
        let counter = match verdict {
            Verdict::Coalesced(_) => &mut self.balance.coalesced,
            Verdict::Skipped(_) => &mut self.balance.skipped,
            Verdict::Missed(_) => &mut self.balance.missed,
        };
        *counter += labels.count;
        if let Some(last) = self.occurrences.last_mut()
            && (last.outcome, last.reason) == (outcome, Some(reason))
        {
            last.count += labels.count;
            last.label_to = Some(labels.last.to_string());
            return;
        }
        let label_to = (labels.count > 1).then(|| labels.last.to_string());
        self.occurrences.push(Occurrence {
            label: labels.first.to_string(),
            label_to,
            count: labels.count,
            time,
            outcome,
            reason: Some(reason),
            ..self.blank.clone()
        });
    }
}
