//! When a schedule fires, and what becomes of every occurrence.
//!
//! [`ScheduleSpec::prepare`] checks what was written and makes it ready for use. [`decide`] looks
//! at a schedule at a given time and answers with a [`FirePlan`]: the tasks to start, a record of
//! what became of every occurrence since the last look, and the schedule's next state. Changes by
//! people (edit, pause, resume, trigger, backfill) are plans too, so that one transaction of the
//! store carries out each of them.
//!
//! Must never look at an occurrence twice (the cursor), never start two tasks for one label, never
//! drop an occurrence without a record, and never do work that grows with the length of a
//! downtime: what was passed over is counted.

mod backfill;
mod blackout;
mod change;
mod decide;
pub mod model;
mod overlap;
mod record;
mod spec;
mod start;

pub use backfill::{
    Backfill, BackfillItem, BackfillMode, backfill, backfill_plan, backfill_task_id, backfilled_by,
};
pub use change::{armed_for, create, disable, edit, pause, rearm, resume, step_back, trigger};
pub use decide::{Look, decide, decided_before};
pub use model::*;
pub use spec::{Prepared, SpecError};
pub use start::Maker;
