//! Whether each public item of `crates/mpi` has an example: a function one that names it, on the function itself, on the page of its type
//! or trait, or in its module; the others one of their own, or one that names them in their module. Examples are tested by `cargo test`;
//! what there is, with the items that macros make, rustdoc tells as JSON.

use std::collections::BTreeSet;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;

use super::rust::cargo;
use crate::project::{self, Project};
use crate::steps::Tally;

/// A check for each item.
pub(super) fn run(project: &Project) -> Result<Tally> {
    // Only rustdoc itself may do what is not stable yet: else all that is built would be built anew.
    let script = project.folder("docs")?.join("rustdoc");
    project::write(&script, "#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc \"$@\"\n")?;
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let job = cargo(project).env("RUSTDOC", script).args(["rustdoc", "--quiet", "-p", "banyan-mpi", "--lib"]);
    job.args(["--", "-Zunstable-options", "--output-format", "json"]).run_ok()?;
    let text = project::read(&project.target().join("doc/mpi.json"))?;
    let docs: Value = serde_json::from_str(&text)?;
    let mut tally = Tally::default();
    let items = items(&docs)?;
    if items.is_empty() {
        bail!("rustdoc's JSON, format {}, is not read any more: it names no item", docs["format_version"]);
    }
    for (item, has) in items {
        tally.check(&item, if has { Ok(()) } else { Err(anyhow!("no example names it")) });
    }
    Ok(tally)
}

/// All public items by their paths, and whether there is an example.
fn items(docs: &Value) -> Result<Vec<(String, bool)>> {
    let root = item(docs, &docs["root"]).context("rustdoc's JSON names no root")?;
    let mut walk = Walk { docs, seen: BTreeSet::new(), items: vec![] };
    walk.module(root, "mpi");
    Ok(walk.items)
}

struct Walk<'d> {
    docs: &'d Value,
    seen: BTreeSet<String>,
    items: Vec<(String, bool)>,
}

impl<'d> Walk<'d> {
    fn module(&mut self, module: &'d Value, path: &str) {
        let own = examples(module);
        // What is exported again is shown where it is at home: not in the crate's root, and not in a module that gathers traits.
        let mut children: Vec<&Value> = list(&module["inner"]["module"]["items"]).collect();
        children.sort_by_key(|id| {
            let child = item(self.docs, id);
            child.map(|child| (child["name"] == "traits", !child["inner"]["module"].is_object()))
        });
        let mut here = vec![];
        for child in children.into_iter().filter_map(|id| exported(self.docs, id)) {
            let path = format!("{path}::{}", name(child));
            if child["inner"]["module"].is_object() {
                self.module(child, &path);
            } else if self.seen.insert(child["id"].to_string()) {
                here.push((path, child, members(self.docs, child)));
            }
        }
        let pages: Vec<String> = here
            .iter()
            .map(|(_, child, members)| {
                examples(child) + &members.iter().map(|m| examples(m)).collect::<String>()
            })
            .collect();
        let whole = own.clone() + &pages.concat();
        // A module that only gathers what stands elsewhere needs no example.
        if !here.is_empty() {
            self.items.push((path.to_owned(), !own.is_empty()));
        }
        for ((path, child, members), page) in here.into_iter().zip(pages) {
            self.items.push((path.clone(), !examples(child).is_empty() || is_named(&whole, name(child), "")));
            let page = page + &own;
            let inherent = child["inner"]["trait"].is_null();
            for member in members {
                let owner = if inherent && !takes_self(member) { name(child) } else { "" };
                let path = format!("{path}::{}", name(member));
                self.items.push((path, is_named(&page, name(member), owner)));
            }
        }
    }
}

/// An item, or what it exports again; nothing for those of other crates.
fn exported<'d>(docs: &'d Value, id: &Value) -> Option<&'d Value> {
    let found = item(docs, id)?;
    let again = &found["inner"]["use"];
    let found = if again.is_object() { item(docs, &again["id"])? } else { found };
    (found["crate_id"] == 0 && again["is_glob"] != true).then_some(found)
}

fn item<'d>(docs: &'d Value, id: &Value) -> Option<&'d Value> {
    docs["index"].get(id.to_string())
}

fn name(item: &Value) -> &str {
    item["name"].as_str().unwrap_or_default()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// The public functions of a type or a trait.
fn members<'d>(docs: &'d Value, of: &'d Value) -> Vec<&'d Value> {
    let inner = &of["inner"];
    let own = list(&inner["trait"]["items"]).filter_map(|id| item(docs, id));
    let impls = ["struct", "enum"].into_iter().flat_map(|kind| list(&inner[kind]["impls"]));
    let inherent =
        impls.filter_map(|id| item(docs, id)).filter(|block| block["inner"]["impl"]["trait"].is_null());
    let inherent = inherent.flat_map(|block| list(&block["inner"]["impl"]["items"]));
    let inherent = inherent.filter_map(|id| item(docs, id)).filter(|member| member["visibility"] == "public");
    own.chain(inherent).filter(|member| member["inner"]["function"].is_object()).collect()
}

fn takes_self(function: &Value) -> bool {
    function["inner"]["function"]["sig"]["inputs"][0][0] == "self"
}

/// The code of an item's examples, those that must not compile left out.
fn examples(item: &Value) -> String {
    let (mut code, mut inside) = (String::new(), None);
    for line in item["docs"].as_str().unwrap_or_default().lines() {
        match (line.trim().strip_prefix("```"), inside) {
            (Some(tag), None) => inside = Some(["", "should_panic"].contains(&tag)),
            (Some(_), Some(_)) => inside = None,
            (None, Some(true)) => code += &format!("{line}\n"),
            (None, _) => {}
        }
    }
    code
}

/// Whether code has this word, behind `owner::` if there is an owner.
fn is_named(code: &str, word: &str, owner: &str) -> bool {
    let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
    code.match_indices(word).any(|(at, _)| {
        let (before, behind) = (&code[..at], &code[at + word.len()..]);
        !before.ends_with(is_part)
            && !behind.starts_with(is_part)
            && (owner.is_empty() || before.strip_suffix("::").is_some_and(|before| before.ends_with(owner)))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_are_whole_words() {
        assert!(is_named("a.rank()", "rank", "") && !is_named("a.ranks()", "rank", ""));
        assert!(is_named("Color::new(1)", "new", "Color") && !is_named("Key::new(1)", "new", "Color"));
    }

    #[test]
    fn an_item_without_an_example_is_found() {
        let function = json!({"function": {"sig": {"inputs": [["self", {}]]}}});
        let docs = json!({"root": 0, "index": {
            "0": {"id": 0, "name": "mpi", "inner": {"module": {"items": [1, 4]}}},
            "1": {"id": 1, "crate_id": 0, "name": "Send", "inner": {"trait": {"items": [2, 3]}},
                  "docs": "```\nfn f(_: impl Send) {}\n```\n```compile_fail\nx.wait()\n```"},
            "2": {"id": 2, "crate_id": 0, "name": "send", "inner": function, "docs": "```\nx.send();\n```"},
            "3": {"id": 3, "crate_id": 0, "name": "wait", "inner": function, "docs": ""},
            "4": {"id": 4, "crate_id": 7, "name": "Foreign", "inner": {"struct": {"impls": []}}},
        }});
        let found = items(&docs).unwrap();
        let found: Vec<(&str, bool)> = found.iter().map(|(path, has)| (path.as_str(), *has)).collect();
        let expected =
            [("mpi", false), ("mpi::Send", true), ("mpi::Send::send", true), ("mpi::Send::wait", false)];
        assert_eq!(found, expected);
    }
}
