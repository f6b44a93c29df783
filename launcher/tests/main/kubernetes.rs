//! The manifests of docs/k8s are what the MPI Operator takes (its version v2beta1), and mpirun finds in the launcher's pod as many
//! places as they say. The rules are those of the operator's schema and of its own validation.

use std::path::Path;

use banyan_launcher::allocation::{Allocation, Reach, find};
use yaml_rust2::{Yaml, YamlLoader};

/// What a mapping may hold.
enum Kind {
    Text,
    Number,
    Flag,
    OneOf(&'static [&'static str]),
    List,
    Map(&'static [(&'static str, Kind)]),
    /// A mapping of Kubernetes' own, which the operator passes on.
    Any,
}
use Kind::{Any, Flag, List, Map, Number, OneOf, Text};

const REPLICA: Kind = Map(&[
    ("replicas", Number),
    ("restartPolicy", OneOf(&["Never", "OnFailure"])),
    ("template", Map(&[("metadata", Any), ("spec", Map(&[("containers", List)]))])),
]);

const JOB: Kind = Map(&[
    ("apiVersion", OneOf(&["kubeflow.org/v2beta1"])),
    ("kind", OneOf(&["MPIJob"])),
    ("metadata", Map(&[("name", Text), ("namespace", Text), ("labels", Any)])),
    (
        "spec",
        Map(&[
            ("slotsPerWorker", Number),
            ("runLauncherAsWorker", Flag),
            ("launcherCreationPolicy", OneOf(&["AtStartup", "WaitForWorkersReady"])),
            ("sshAuthMountPath", Text),
            ("mpiImplementation", OneOf(&["OpenMPI", "Intel", "MPICH"])),
            (
                "runPolicy",
                Map(&[
                    ("cleanPodPolicy", OneOf(&["None", "Running", "All"])),
                    ("ttlSecondsAfterFinished", Number),
                    ("activeDeadlineSeconds", Number),
                    ("backoffLimit", Number),
                    ("suspend", Flag),
                ]),
            ),
            ("mpiReplicaSpecs", Map(&[("Launcher", REPLICA), ("Worker", REPLICA)])),
        ]),
    ),
]);

const CONTAINER: Kind = Map(&[
    ("name", Text),
    ("image", Text),
    ("command", List),
    ("args", List),
    ("readinessProbe", Any),
    ("resources", Any),
    ("env", List),
    ("securityContext", Any),
]);

/// What of `value` is not of this kind.
fn wrong(at: &str, value: &Yaml, kind: &Kind) -> Vec<String> {
    let fits = match kind {
        Map(fields) => {
            let Some(map) = value.as_hash() else { return vec![format!("{at} is no mapping")] };
            let each = map.iter().flat_map(|(key, value)| {
                let name = key.as_str().unwrap_or("?");
                let at = format!("{at}.{name}");
                match fields.iter().find(|(known, _)| *known == name) {
                    Some((_, kind)) => wrong(&at, value, kind),
                    None => vec![format!("{at} is not known")],
                }
            });
            return each.collect();
        }
        Text => value.as_str().is_some_and(|text| !text.is_empty()),
        Number => value.as_i64().is_some_and(|number| number >= 0),
        Flag => value.as_bool().is_some(),
        OneOf(words) => value.as_str().is_some_and(|word| words.contains(&word)),
        List => value.as_vec().is_some_and(|list| !list.is_empty()),
        Any => value.as_hash().is_some(),
    };
    if fits { Vec::new() } else { vec![format!("{at} is {value:?}")] }
}

/// The words of a container's `command` or `args`.
fn words(list: &Yaml) -> Vec<&str> {
    list.as_vec().map_or(Vec::new(), |list| {
        list.iter().map(|word| word.as_str().expect("words, and no bare numbers")).collect()
    })
}

/// What mpirun finds in the launcher's pod, with the host file that the operator writes for this job.
fn allocation(job: &Yaml) -> Allocation {
    let spec = &job["spec"];
    let (name, slots) = (job["metadata"]["name"].as_str().unwrap(), spec["slotsPerWorker"].as_i64().unwrap());
    let works = spec["runLauncherAsWorker"].as_bool().unwrap_or(false);
    let workers = spec["mpiReplicaSpecs"]["Worker"]["replicas"].as_i64().unwrap();
    let pods = (0..workers).map(|at| format!("{name}-worker-{at}"));
    let pods = works.then(|| format!("{name}-launcher")).into_iter().chain(pods);
    let file: String = pods.map(|pod| format!("{pod}.{name}.default.svc slots={slots}\n")).collect();
    let variable = |asked: &str| {
        let value = match asked {
            "K_MPI_JOB_ROLE" => "launcher",
            "OMPI_MCA_orte_default_hostfile" => "/etc/mpi/hostfile",
            "OMPI_MCA_plm_rsh_args" => "-o ConnectionAttempts=10",
            _ => return None,
        };
        Some(value.to_owned())
    };
    let found = find(&variable, &|path| {
        assert_eq!(path, Path::new("/etc/mpi/hostfile"));
        Ok(file.clone())
    });
    found.unwrap().expect("an allocation")
}

/// What is wrong with a manifest.
fn problems(text: &str) -> Vec<String> {
    let jobs = YamlLoader::load_from_str(text).unwrap();
    let [job] = jobs.as_slice() else { return vec!["not one document".to_owned()] };
    let mut problems = wrong("job", job, &JOB);
    let mut needs = |holds: bool, what: &str| {
        if !holds {
            problems.push(what.to_owned());
        }
    };
    let (spec, replicas) = (&job["spec"], &job["spec"]["mpiReplicaSpecs"]);
    let (launcher, worker) = (&replicas["Launcher"], &replicas["Worker"]);
    let workers = worker["replicas"].as_i64().unwrap_or(0);
    needs(launcher["replicas"].as_i64() == Some(1), "there must be one launcher");
    needs(workers >= 1, "there must be a worker");
    needs(!spec["runPolicy"]["cleanPodPolicy"].is_badvalue(), "cleanPodPolicy is missing");
    let path = spec["sshAuthMountPath"].as_str().unwrap_or("/root/.ssh");
    needs(path.starts_with('/'), "the mount path must be absolute");
    // The name of the last worker's pod is a label of DNS.
    let name = format!("{}-worker-{}", job["metadata"]["name"].as_str().unwrap_or(""), workers - 1);
    let letters = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let label =
        name.len() <= 63 && name.starts_with(|c: char| c.is_ascii_lowercase()) && name.chars().all(letters);
    needs(label, "the name is no label of DNS");
    let containers = [launcher, worker].map(|role| role["template"]["spec"]["containers"].as_vec());
    for container in containers.into_iter().flatten().flatten() {
        needs(
            !container["image"].is_badvalue() && !container["name"].is_badvalue(),
            "a container lacks image or name",
        );
        wrong("container", container, &CONTAINER).iter().for_each(|what| needs(false, what));
    }
    problems
}

#[test]
fn manifests_fit_the_operator_and_mpirun() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/k8s");
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(problems(&text), Vec::<String>::new(), "{}", path.display());
        let job = &YamlLoader::load_from_str(&text).unwrap()[0];
        let Allocation { manager, hosts, reach } = allocation(job);
        assert_eq!(manager, "the MPI Operator");
        assert_eq!(reach, Reach::Ssh(vec!["-o".to_owned(), "ConnectionAttempts=10".to_owned()]));
        let container = &job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0];
        let (command, arguments) = (words(&container["command"]), words(&container["args"]));
        assert!(
            matches!(command.as_slice(), [program] if program.starts_with('/') && program.ends_with("/bin/mpirun"))
        );
        let asked = arguments.iter().skip_while(|word| **word != "-n").nth(1);
        let places: u32 = hosts.iter().map(|(_, slots)| slots).sum();
        assert!(asked.is_none_or(|asked| asked.parse() == Ok(places)), "{}: {places} places", path.display());
        seen += 1;
    }
    assert!(seen >= 2, "{seen} manifests");
}

#[test]
fn what_the_operator_refuses_is_noticed() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/k8s/mpijob.yaml");
    let text = std::fs::read_to_string(file).unwrap();
    for (right, wrong) in [
        ("v2beta1", "v1"),
        ("slotsPerWorker", "slotsPerWorkers"),
        ("slotsPerWorker: 2", "slotsPerWorker: two"),
        ("name: heat", "name: Heat"),
        ("replicas: 1", "replicas: 2"),
        ("replicas: 2", "replicas: 0"),
        ("cleanPodPolicy: Running", "cleanPodPolicy: Sometimes"),
        ("restartPolicy: Never", "restartPolicy: Always"),
        ("image: heat:1", "picture: heat:1"),
        ("sshAuthMountPath: /", "sshAuthMountPath: "),
    ] {
        assert!(text.contains(right), "{right}");
        assert!(!problems(&text.replacen(right, wrong, 1)).is_empty(), "{wrong} passes");
    }
}
