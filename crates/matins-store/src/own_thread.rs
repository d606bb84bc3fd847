//! A thread on which connections live: whoever opened a store may come and go, and a runtime
//! whose threads are all busy does not hold up a line.

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

/// Ends, with everything that runs on it, when it is dropped.
#[derive(Debug)]
pub(crate) struct OwnThread {
    handle: Handle,
    _stop: oneshot::Sender<()>,
}

impl OwnThread {
    pub(crate) fn start(name: &str) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let _ = runtime.block_on(stopped);
            runtime.shutdown_background();
        })?;
        Ok(Self { handle, _stop: stop })
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        self.handle.spawn(task).abort_handle()
    }
}
