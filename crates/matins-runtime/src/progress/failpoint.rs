//! Parks loops for tests: `MATINS_PARK_LOOPS` names a file that names loops, one a line. Debug
//! builds alone look at it; in a release there is nothing to look.

#[cfg(debug_assertions)]
pub(super) async fn pass(name: &str) {
    use std::path::PathBuf;
    use std::sync::OnceLock;

    static FILE: OnceLock<Option<PathBuf>> = OnceLock::new();
    let file = FILE.get_or_init(|| std::env::var_os("MATINS_PARK_LOOPS").map(PathBuf::from));
    let Some(file) = file else { return };
    let named = std::fs::read_to_string(file).unwrap_or_default();
    if named.lines().any(|line| line == name) {
        tracing::warn!("the loop {name} is parked by a failpoint");
        std::future::pending::<()>().await;
    }
}

#[cfg(not(debug_assertions))]
pub(super) async fn pass(_name: &str) {}
