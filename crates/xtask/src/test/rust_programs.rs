//! Programs in Rust as their users make them: mpirun by `cargo install`, a program by `cargo new` and `cargo add`, with Rust and a linker
//! alone. It runs by itself, on ranks of mpirun, as a test of its own, and beside ranks in C (tests/rust).

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use toml::Table;

use crate::cc::{self, Unit};
use crate::library::Library;
use crate::process::Job;
use crate::project::{self, Project};
use crate::steps::Tally;

/// Jobs: the language of each rank.
const JOBS: [&[&str]; 4] =
    [&["Rust"; 4], &["C", "C", "Rust", "Rust"], &["Rust", "C"], &["Rust", "C", "C", "Rust", "C"]];

/// How messages go: a name, and mpirun's options. Encrypted, ranks in C among themselves use AES, all others ChaCha20.
const WAYS: [(&str, &[&str]); 3] = [
    ("shm", &["-x", "BANYAN_FABRICS=shm"]),
    ("tcp", &["-x", "BANYAN_FABRICS=tcp"]),
    ("encrypted tcp", &["-x", "BANYAN_FABRICS=tcp", "--encrypt"]),
];

/// All checks.
pub(super) fn run(project: &Project, library: &Library) -> Result<Tally> {
    let user = User::new(project)?;
    user.make_program(project)?;
    let unit = Unit::program(user.program("C"), project.file("tests/rust/both.c"));
    cc::build(library, &unit.flags(["-std=c11", "-D_DEFAULT_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror"]))?;

    let mut tally = Tally::default();
    let cargo = |what| user.job("cargo").args([what, "--quiet", "--offline"]);
    tally.check("cargo run", gets_through(&cargo("run"), &["Rust"]));
    tally.check("cargo test", says(&cargo("test"), &["1 passed".to_owned()]));
    for languages in JOBS {
        for (way, options) in WAYS {
            let job = user.mpirun(languages, options);
            tally.check(&format!("{} over {way}", languages.join(", ")), gets_through(&job, languages));
        }
    }
    Ok(tally)
}

/// A job in which each rank of the program says that nothing was wrong.
fn gets_through(job: &Job, languages: &[&str]) -> Result<()> {
    let said = |(rank, language)| format!("rank {rank} of {} in {language}: 0 wrong", languages.len());
    says(job, &languages.iter().enumerate().map(said).collect::<Vec<_>>())
}

fn says(job: &Job, texts: &[String]) -> Result<()> {
    let output = job.run_ok()?.output;
    match texts.iter().find(|text| output.matches(*text).count() != 1) {
        None => Ok(()),
        Some(text) => bail!("{}: not once \"{text}\" in\n{output}", job.line()),
    }
}

/// What links and does nothing else, in the place of the compiler that rustc calls to link.
const LINKER: &str = "#!/bin/sh
for word; do
    case $word in
    -c | -S | -E | *.c | *.cc | *.cpp | *.S) echo \"here is no compiler: cc $*\" >&2; exit 1 ;;
    esac
done
exec @CC@ \"$@\"
";

/// Someone who has Rust and a linker: all that is in the search path. The folder is none of a workspace, and goes with the value.
struct User {
    folder: PathBuf,
    /// The environment, as `NAME=VALUE`.
    environment: Vec<String>,
    target: PathBuf,
}

impl User {
    fn new(project: &Project) -> Result<User> {
        // The same each time, so that what cargo has built there is not built anew.
        let name = format!("banyan-rust{}", project.root().display().to_string().replace('/', "-"));
        let (folder, target) = (std::env::temp_dir().join(name), project.folder("tests-rust")?);
        let (path, linker) =
            (folder.join("bin"), Job::new("sh").args(["-c", "command -v cc"]).run_ok()?.output);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let sysroot = Job::new("rustc").args(["--print", "sysroot"]).run_ok()?.output;
        for tool in ["cargo", "rustc", "rustdoc"] {
            symlink(Path::new(sysroot.trim()).join("bin").join(tool), path.join(tool))?;
        }
        project::write(&path.join("cc"), LINKER.replace("@CC@", linker.trim()))?;
        fs::set_permissions(path.join("cc"), fs::Permissions::from_mode(0o755))?;
        let own = ["HOME", "CARGO_HOME"].map(|name| Some(format!("{name}={}", std::env::var(name).ok()?)));
        let set = [
            format!("PATH={}:{}", path.display(), folder.join("installed/bin").display()),
            format!("CARGO_TARGET_DIR={}", target.display()),
            // The program's profile has more for debuggers than mpirun's: alike they share what is built.
            "CARGO_PROFILE_DEV_DEBUG=false".to_owned(),
            // Nothing is changed and built again.
            "CARGO_INCREMENTAL=0".to_owned(),
        ];
        Ok(User { folder, environment: own.into_iter().flatten().chain(set).collect(), target })
    }

    /// A program of the search path, which gets no variables but this user's.
    fn job(&self, program: &str) -> Job {
        let job = Job::new("env").arg("-i").args(&self.environment).arg(program);
        let made = self.folder.join("both");
        job.folder(if made.exists() { &made } else { &self.folder })
    }

    /// Installs mpirun, and makes the program. (Built for speed it would take minutes, and show no more.)
    fn make_program(&self, project: &Project) -> Result<()> {
        let cargo = |words: &[&str]| self.job("cargo").args(words).arg("--offline").run_ok().map(drop);
        let (launcher, mpi) = (project.file("launcher"), project.file("crates/mpi"));
        let installed = self.folder.join("installed");
        let [launcher, mpi, installed] = [&launcher, &mpi, &installed].map(|path| path.to_string_lossy());
        let install =
            ["install", "--quiet", "--locked", "--debug", "--path", &launcher, "--root", &installed];
        // What the workspace optimizes for its own tests is not optimized here, as it is not for the program.
        let manifest: Table = project.read("Cargo.toml")?.parse()?;
        let optimized = manifest["profile"]["dev"]["package"].as_table().context("a table of packages")?;
        let plain: Vec<String> = optimized
            .keys()
            .map(|package| format!("--config=profile.dev.package.{package:?}.opt-level=0"))
            .collect();
        cargo(&install.into_iter().chain(plain.iter().map(String::as_str)).collect::<Vec<_>>())?;
        cargo(&["new", "--vcs", "none", "both"])?;
        // The same versions as mpirun's, so that they share what is built.
        project::write(&self.folder.join("both/Cargo.lock"), project.read("Cargo.lock")?)?;
        cargo(&["add", "banyan-mpi", "--path", &mpi, "--rename", "mpi"])?;
        cargo(&["add", "banyan-mpi", "--path", &mpi, "--rename", "mpi", "--dev", "--features", "test"])?;
        project::write(&self.folder.join("both/src/main.rs"), project.read("tests/rust/both.rs")?)?;
        cargo(&["build", "--quiet"])
    }

    /// The program in this language.
    fn program(&self, language: &str) -> PathBuf {
        if language == "C" { self.folder.join("both-c") } else { self.target.join("debug/both") }
    }

    /// `mpirun`, with a program for each rank.
    fn mpirun(&self, languages: &[&str], options: &[&str]) -> Job {
        let mut job = self.job("mpirun").args(["--timeout", "300"]).args(options);
        for (rank, language) in languages.iter().enumerate() {
            job = if rank > 0 { job.arg(":") } else { job };
            job = job.args(["-n", "1"]).arg(self.program(language));
        }
        job
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}
