//! `matins top`: the store as it changes, until somebody presses q.
//!
//! A frame is made of the same parts as `status`, `pool list` and `dead list --by-error`; a
//! store or server that does not answer is a line of the frame, not the end.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use clap::Args;
use crossterm::event::{self, Event, KeyCode, KeyModifiers};
use crossterm::{cursor, queue, style, terminal};

use super::{duration, pool, status};
use crate::door::Request;
use crate::failure::{Failure, Result};
use crate::output::{self, Output, Tone, text, time};
use crate::session::{Global, Session, now};
use crate::views::{Groups, Pools, Status, TaskPage};

/// Running tasks and groups of errors in a frame.
const TASKS: usize = 15;
const GROUPS: usize = 5;

/// More often is no use to anybody who looks.
const EVERY_MIN: Duration = Duration::from_millis(200);

#[derive(Debug, Args)]
pub(crate) struct Top {
    /// Between two looks
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = duration)]
    every: Duration,
    /// Print one frame and end
    #[arg(long)]
    once: bool,
}

impl Top {
    pub(crate) async fn run(self, global: &Global) -> Result<()> {
        let session = Session::open(global)?;
        let mut pace = Pace::default();
        if self.once || !std::io::stdout().is_terminal() {
            return output::line(&frame(&session, &mut pace).await?);
        }
        let every = self.every.max(EVERY_MIN);
        let screen = Screen::open()?;
        loop {
            let drawn = match frame(&session, &mut pace).await {
                Ok(frame) => frame,
                Err(failure) => failure.message.unwrap_or_default(),
            };
            screen.draw(&drawn)?;
            let pressed = tokio::task::spawn_blocking(move || wait_for_end(every)).await;
            if pressed.unwrap_or(true) {
                return Ok(());
            }
        }
    }
}

/// Completed tasks at the last look: their growth is the throughput.
#[derive(Default)]
struct Pace(Option<(Instant, u64)>);

impl Pace {
    fn per_second(&mut self, completed: u64) -> Option<f64> {
        let (then, before) = self.0.replace((Instant::now(), completed))?;
        Some(completed.saturating_sub(before) as f64 / then.elapsed().as_secs_f64().max(0.001))
    }
}

async fn frame(session: &Session, pace: &mut Pace) -> Result<String> {
    let out = &session.out;
    let found: Status = session.ask(Request::get(&["status"])).await?.decode()?;
    let pools: Pools = session.ask(Request::get(&["pools"])).await?.decode()?;
    let completed = found.tasks.get("completed").copied().unwrap_or(0);
    let rate = pace.per_second(completed);
    let served = !session.door.has_no_server().await;
    let mut frame = status::facts(&found, out, served).to_string();
    for hint in status::hints(&found, served) {
        let _ = writeln!(frame, "hint: {hint}");
    }
    if let Some(rate) = rate {
        let _ = writeln!(frame, "{:<14} {rate:.1} tasks a second", "completed");
    }
    frame.push('\n');
    frame.push_str(&pool::grid(&pools, out).to_string());
    frame.push_str("\n\n");
    frame.push_str(&running(session, out).await?);
    if found.dead_letters > 0 {
        frame.push_str(&dead(session, out).await?);
    }
    Ok(frame)
}

async fn running(session: &Session, out: &Output) -> Result<String> {
    let limit = TASKS.to_string();
    let request = Request::get(&["tasks"]).query("state", Some("running"));
    let page: TaskPage = session.ask(request.query("limit", Some(limit))).await?.decode()?;
    if page.tasks.is_empty() {
        return Ok("nothing runs\n".to_owned());
    }
    let mut grid = out.grid(["RUNNING", "TYPE", "POOL", "ATTEMPT", "SINCE"]);
    for task in &page.tasks {
        let since = task.started_at.as_deref().and_then(|at| at.parse().ok());
        grid.row([
            task.id.as_str().into(),
            task.kind.as_str().into(),
            task.pool.as_deref().into(),
            task.attempt.map(|n| n.to_string()).unwrap_or_default().into(),
            since.map(|at| time::age(at, now())).unwrap_or_default().into(),
        ]);
    }
    Ok(format!("{grid}\n"))
}

async fn dead(session: &Session, out: &Output) -> Result<String> {
    let request = Request::get(&["dead_letters"]).query("group_by", Some("error"));
    let groups: Groups = session.ask(request).await?.decode()?;
    let mut lines = String::from("\n");
    for group in groups.groups.iter().take(GROUPS) {
        let said = text::short(&group.message, 80);
        let line = format!("{} dead: {}: {said}", group.count, text::line(&group.class));
        lines.push_str(&out.tinted(Tone::Bad, &line));
        lines.push('\n');
    }
    Ok(lines)
}

/// Whether somebody wants it to end.
fn wait_for_end(within: Duration) -> bool {
    let end = Instant::now() + within;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        match event::poll(left) {
            Ok(true) => {}
            Ok(false) => return false,
            Err(_) => return true,
        }
        let Ok(Event::Key(key)) = event::read() else { continue };
        let interrupts = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Char('c') if interrupts => return true,
            _ => {}
        }
    }
}

/// The terminal while it is ours; given back however this ends.
struct Screen;

impl Screen {
    fn open() -> Result<Self> {
        let failed = |error: std::io::Error| Failure::io("cannot use the terminal", &error);
        terminal::enable_raw_mode().map_err(failed)?;
        let screen = Self;
        let mut out = std::io::stdout();
        queue!(out, terminal::EnterAlternateScreen, terminal::DisableLineWrap, cursor::Hide)
            .and_then(|()| out.flush())
            .map_err(failed)?;
        Ok(screen)
    }

    #[allow(clippy::unused_self, reason = "only an open screen is drawn on")]
    fn draw(&self, frame: &str) -> Result<()> {
        // A terminal may not know its own size.
        let rows = terminal::size().map_or(0, |(_, rows)| rows);
        let rows = if rows < 2 { 24 } else { rows };
        let mut out = std::io::stdout().lock();
        let mut draw = || {
            queue!(out, cursor::MoveTo(0, 0))?;
            for line in frame.lines().take(usize::from(rows) - 1) {
                let clear = terminal::Clear(terminal::ClearType::UntilNewLine);
                queue!(out, style::Print(line), clear, style::Print("\r\n"))?;
            }
            queue!(out, terminal::Clear(terminal::ClearType::FromCursorDown))?;
            queue!(out, cursor::MoveTo(0, rows - 1), style::Print("q: end"))?;
            out.flush()
        };
        draw().map_err(|error| Failure::from_write(&error))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let mut out = std::io::stdout();
        let _ = queue!(out, terminal::EnableLineWrap, cursor::Show, terminal::LeaveAlternateScreen);
        let _ = out.flush();
        let _ = terminal::disable_raw_mode();
    }
}
