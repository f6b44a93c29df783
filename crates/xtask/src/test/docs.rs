//! The guide: its commands run, its links lead somewhere, its generated parts are what the code says.

use anyhow::{Result, bail};

use crate::docs;
use crate::install;
use crate::project::{self, Project};
use crate::steps::Tally;

/// All checks.
pub(super) fn run(project: &Project) -> Result<Tally> {
    let prefix = install::once(project)?;
    let mut tally = Tally::default();
    for (name, result) in docs::up_to_date(project) {
        tally.check(&name, result);
    }
    for page in docs::pages(project.root())? {
        let dead = page.dead_links();
        let links =
            if dead.is_empty() { Ok(()) } else { Err(anyhow::anyhow!("no such file: {}", dead.join(", "))) };
        tally.check(&format!("links of {}", page.name), links);
        if page.commands() > 0 {
            let work = project.folder("docs")?.join(page.name.replace('/', "-"));
            tally.check(&format!("commands of {}", page.name), page.run(&prefix, &work));
        }
    }
    tally.check("every page is in the summary", in_summary(project));
    Ok(tally)
}

fn in_summary(project: &Project) -> Result<()> {
    let summary = project.read("docs/src/SUMMARY.md")?;
    for file in project::files_with(&project.file("docs/src"), "md")? {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        if name != "SUMMARY.md" && !summary.contains(&format!("({name})")) {
            bail!("docs/src/{name} is not in SUMMARY.md");
        }
    }
    Ok(())
}
