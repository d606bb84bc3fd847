//! What lies in `deploy/`, judged by the tools that will read it: systemd's, Prometheus' own, and
//! the kernel that runs the container's file system.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use matins_e2e::process::{self, Signal};
use matins_e2e::wait::seconds;
use matins_e2e::{Request, Server, Value, eventually, json};
use matins_testbed::skipped;

const PATIENCE: Duration = Duration::from_secs(60);

fn deploy(path: &str) -> PathBuf {
    matins_e2e::binary::workspace().join("deploy").join(path)
}

/// Runs a tool; `None` where it is not installed (`scripts/test` installs it).
fn tool(command: &mut Command) -> Option<Output> {
    match command.output() {
        Ok(output) => Some(output),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let name = command.get_program().display().to_string();
            skipped(&format!("{name} is not installed, which scripts/test would do"));
            None
        }
        Err(error) => panic!("{command:?}: {error}"),
    }
}

#[track_caller]
fn succeeds(output: &Output) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}

#[test]
fn systemd_takes_the_units() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["matins.service", "matins-watch.service"] {
        let unit = fs::read_to_string(deploy("systemd").join(name)).expect("the unit");
        let binary = matins_e2e::binary::matins().display().to_string();
        let here = unit.replace("/usr/local/bin/matins", &binary);
        assert_ne!(here, unit);
        let path = folder.path().join(name);
        fs::write(&path, here).expect("a copy");
        let Some(output) = tool(Command::new("systemd-analyze").arg("verify").arg(&path)) else {
            return;
        };
        succeeds(&output);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!said.contains(name), "{name}: {said}");
    }
}

#[test]
fn prometheus_takes_the_rules_and_they_fire() {
    let rules = deploy("grafana");
    for arguments in
        [["check", "rules", "matins.rules.yaml"], ["test", "rules", "matins.rules.test.yaml"]]
    {
        let mut command = Command::new("promtool");
        let Some(output) = tool(command.current_dir(&rules).args(arguments)) else { return };
        succeeds(&output);
    }
}

/// The manifests fit the schemas of Kubernetes, and the configurations in them, and in the image,
/// are ones that the binary takes.
#[test]
fn kubernetes_takes_the_manifests() {
    let file = deploy("kubernetes/matins.yaml");
    let mut validate = Command::new("kubernetes-validate");
    if let Some(output) = tool(validate.arg("--strict").arg(&file)) {
        succeeds(&output);
        let said = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        for kind in ["configmap", "deployment", "service", "poddisruptionbudget"] {
            assert!(said.contains(&format!("resource {kind}/matins")), "{kind}: {said}");
        }
        // It does look.
        let wrong = fs::read_to_string(&file).expect("the manifests");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("wrong.yaml");
        fs::write(&path, wrong.replace("periodSeconds: 15", "periodSecond: 15")).expect("a file");
        let refused = Command::new("kubernetes-validate").arg("--strict").arg(&path).output();
        assert!(!refused.expect("it was there").status.success());
    }
    let manifests = fs::read_to_string(&file).expect("the manifests");
    let (_, rest) = manifests.split_once("matins.yaml: |\n").expect("a configuration");
    let own = rest.lines().map_while(|line| line.strip_prefix("    "));
    let own = own.collect::<Vec<_>>().join("\n");
    assert!(own.contains("store: env:MATINS_STORE_URL"), "{own}");
    let image = fs::read_to_string(deploy("docker/matins.yaml")).expect("the image's file");
    for config in [own, image] {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("matins.yaml");
        fs::write(&path, &config).expect("a file");
        let mut check = Command::new(matins_e2e::binary::matins());
        check.current_dir(folder.path()).arg("-c").arg(&path).arg("check");
        check.env("MATINS_STORE_URL", "postgres://db/matins");
        check.env("MATINS_ADMIN_TOKEN", "a-token-of-this-test-alone");
        succeeds(&check.output().expect("matins"));
    }
}

/// Ends what it holds.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Every expression of the dashboard and of the rules is asked of a live Prometheus that scrapes a
/// live server, and every metric it names is one that the server has.
#[test]
fn the_dashboard_resolves_against_a_live_prometheus() {
    let server = Server::with(
        "schedules:\n  tick: {schedule: \"* * * * * *\", type: command, \
         payload: {argv: [\"true\"]}}\n",
    );
    let api = server.api();
    let bad = api.shell("exit 1", &json!({"max_retries": 0}));
    api.wait_state(bad.id(), "failed", PATIENCE);
    // Nobody runs it: it stays ready.
    api.enqueue(&json!({"type": "nobody"}));
    eventually("every figure is there", PATIENCE, || {
        api.metric("matins_ready", "").filter(|n| *n > 0.0)
    });
    let folder = tempfile::tempdir().expect("a folder");
    let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("it").port();
    let config = format!(
        "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n\
         rule_files: [{}]\n\
         scrape_configs:\n  - job_name: matins\n    static_configs: [{{targets: [\"{}\"]}}]\n",
        deploy("grafana/matins.rules.yaml").display(),
        server.address(),
    );
    fs::write(folder.path().join("prometheus.yml"), config).expect("a file");
    let started = Command::new("prometheus")
        .arg(format!("--config.file={}", folder.path().join("prometheus.yml").display()))
        .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
        .arg(format!("--web.listen-address=127.0.0.1:{port}"))
        .stdout(Stdio::null())
        .stderr(fs::File::create(folder.path().join("log")).expect("a log"))
        .spawn();
    let Ok(child) = started else {
        return skipped("prometheus is not installed, which scripts/test would do");
    };
    let _running = Running(child);
    let query = |expression: &str| -> Option<Value> {
        let target = format!("/api/v1/query?query={}", matins_e2e::api::escaped(expression));
        let answer = Request::new("GET", &target).send(([127, 0, 0, 1], port).into()).ok()?;
        // It says 503 while it starts.
        (answer.status == 200).then(|| answer.json())
    };
    let found = |expression: &str| {
        let answer = query(expression)?;
        let result = answer["data"]["result"].as_array()?;
        (!result.is_empty()).then(|| answer.clone())
    };
    eventually("prometheus has scraped", PATIENCE, || found("matins_dead_letters > 0"));
    eventually("a rule fires", PATIENCE, || {
        found("ALERTS{alertname=\"MatinsDeadLetters\",alertstate=\"firing\"}")
    });
    let metrics = Request::new("GET", "/metrics").send(server.address()).expect("metrics").text();
    let mut asked = 0;
    for expression in expressions() {
        let here = expression.replace("$instance", ".*");
        let answer = query(&here).unwrap_or_else(|| panic!("no answer to {here}"));
        assert_eq!(answer["status"], "success", "{here}: {answer}");
        for name in names(&here) {
            let family = ["_bucket", "_count", "_sum", "_total"]
                .iter()
                .find_map(|suffix| name.strip_suffix(suffix))
                .unwrap_or(&name);
            assert!(metrics.contains(&format!("# TYPE {family} ")), "{name} in {here}");
        }
        asked += 1;
    }
    assert!(asked > 25, "only {asked} expressions were found");
}

/// Of the dashboard and of the rules.
fn expressions() -> Vec<String> {
    let board = fs::read_to_string(deploy("grafana/dashboard.json")).expect("the dashboard");
    let board: Value = serde_json::from_str(&board).expect("the dashboard is JSON");
    let panels = board["panels"].as_array().expect("panels");
    let ids: BTreeSet<i64> = panels.iter().filter_map(|panel| panel["id"].as_i64()).collect();
    assert_eq!(ids.len(), panels.len(), "each panel has an id of its own");
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().expect("targets"));
    let shown = targets.map(|target| target["expr"].as_str().expect("an expression").to_owned());
    let rules = fs::read_to_string(deploy("grafana/matins.rules.yaml")).expect("the rules");
    let ruled = rules.lines().filter_map(|line| line.trim().strip_prefix("expr: "));
    shown.chain(ruled.map(str::to_owned)).collect()
}

fn names(expression: &str) -> BTreeSet<String> {
    expression
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| word.starts_with("matins_"))
        .map(str::to_owned)
        .collect()
}

/// The container's file system, made of what its Dockerfile copies, run without Docker: another
/// root, another user, the supervising parent as the first process, a network of its own.
#[test]
fn the_container_runs_without_docker() {
    let probe =
        Command::new("unshare").args(["--mount", "--net", "--pid", "--fork", "true"]).status();
    if !probe.is_ok_and(|status| status.success()) {
        return skipped("the container: no right to make namespaces");
    }
    let file = fs::read_to_string(deploy("docker/Dockerfile")).expect("the Dockerfile");
    let words = |key: &str| -> Vec<String> {
        let flat = file.replace("\\\n", " ");
        let last = flat.lines().rfind(|line| line.trim_start().starts_with(key)).expect(key);
        let array = &last[last.find('[').expect("an array")..];
        serde_json::from_str(array).expect("a JSON array")
    };
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().join("root");
    furnish(&root);
    let entry: Vec<String> = words("ENTRYPOINT").into_iter().chain(words("CMD [\"serve")).collect();
    let script = format!(
        "ip link set lo up && mount -t proc proc {root}/proc && \
         exec chroot --userspec=10001:10001 {root} {}",
        entry.join(" "),
        root = root.display()
    );
    let log = folder.path().join("log");
    let child = Command::new("unshare")
        .args(["--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-c", &script])
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("MATINS_CONFIG", "/etc/matins/matins.yaml")
        .env("MATINS_DATA_DIR", "/var/lib/matins")
        .env("MATINS_ADMIN_TOKEN", "a-token-of-this-test-alone")
        .stdout(fs::File::create(&log).expect("a log"))
        .stderr(fs::File::options().append(true).open(&log).expect("the log"))
        .spawn()
        .expect("unshare");
    let mut running = Running(child);
    let outside = running.0.id();
    let first =
        || process::descendants(outside).iter().find(|p| p.parent == outside).map(|p| p.pid);
    let check = words("HEALTHCHECK");
    let healthy = || {
        let first = first()?.to_string();
        let root = root.display().to_string();
        let mut command = Command::new("nsenter");
        command.args(["-t", &first, "-n", "chroot", "--userspec=10001:10001", &root]);
        let output = command.args(&check).output().ok()?;
        output.status.success().then_some(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let said = matins_e2e::wait_for(PATIENCE, healthy);
    let said = said.unwrap_or_else(|| panic!("{}", fs::read_to_string(&log).unwrap_or_default()));
    assert!(said.contains("\"ok\""), "{said}");
    let first = first().expect("the first process");
    let status = fs::read_to_string(format!("/proc/{first}/status")).expect("its status");
    assert!(
        status.lines().any(|line| line.starts_with("NSpid:") && line.ends_with("\t1")),
        "{status}"
    );
    assert!(status.contains("Uid:\t10001\t"), "{status}");
    // What the health check says of a server that hangs, and that it is mended.
    process::signal(first, Signal::TERM);
    let ended = eventually("it ends", seconds(20.0), || running.0.try_wait().ok().flatten());
    assert!(ended.success(), "{ended}");
    assert!(root.join("var/lib/matins/matins.db").exists(), "the store lies on the volume");
}

/// The binary, the libraries it is linked to, and the folders that the image makes.
fn furnish(root: &Path) {
    for folder in ["usr/local/bin", "etc/matins", "var/lib/matins", "proc", "dev", "tmp"] {
        fs::create_dir_all(root.join(folder)).expect("a folder");
    }
    let binary = root.join("usr/local/bin/matins");
    fs::copy(matins_e2e::binary::matins(), &binary).expect("the binary");
    let listed = Command::new("ldd").arg(&binary).output().expect("ldd");
    for path in String::from_utf8_lossy(&listed.stdout).split_whitespace() {
        if path.starts_with('/') {
            let inside = root.join(path.trim_start_matches('/'));
            fs::create_dir_all(inside.parent().expect("a folder")).expect("a folder");
            fs::copy(path, &inside).expect("a library");
        }
    }
    // What the package ca-certificates brings into the image.
    let certificates = "etc/ssl/certs/ca-certificates.crt";
    fs::create_dir_all(root.join("etc/ssl/certs")).expect("a folder");
    fs::copy(Path::new("/").join(certificates), root.join(certificates)).expect("certificates");
    fs::copy(deploy("docker/matins.yaml"), root.join("etc/matins/matins.yaml")).expect("the file");
    let mut null = fs::File::create(root.join("dev/null")).expect("a stand-in");
    null.flush().expect("nothing");
    let open = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("permissions");
    };
    open(&root.join("dev/null"), 0o666);
    open(&root.join("tmp"), 0o1777);
    let data = root.join("var/lib/matins");
    std::os::unix::fs::chown(&data, Some(10001), Some(10001)).expect("its owner");
    // A folder above may be closed to others.
    let mut above = root.to_owned();
    while above.pop() && above.starts_with(std::env::temp_dir()) && above != std::env::temp_dir() {
        open(&above, 0o755);
    }
}
