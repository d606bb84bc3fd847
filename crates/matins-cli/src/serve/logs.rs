//! The log of a server: text for people, or one JSON object per line with stable field names
//! (`timestamp`, `level`, `target`, `message`, and what belongs to the message).

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer as _, fmt};

use crate::config::{Log, LogFormat};

pub(crate) fn start(log: Log) {
    // Libraries below speak up only when something is wrong, whatever is asked of Matins.
    let filter = Targets::new()
        .with_default(LevelFilter::WARN)
        .with_target("matins", LevelFilter::from_level(log.level));
    let layer = match log.format {
        LogFormat::Text => {
            let colour = std::io::IsTerminal::is_terminal(&std::io::stderr())
                && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
            fmt::layer().with_writer(std::io::stderr).with_ansi(colour).with_target(false).boxed()
        }
        LogFormat::Json => fmt::layer()
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            .with_writer(std::io::stderr)
            .boxed(),
    };
    // A second start in one process keeps the first subscriber.
    let _ = tracing_subscriber::registry().with(layer.with_filter(filter)).try_init();
}
