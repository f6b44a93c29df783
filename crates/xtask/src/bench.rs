//! stub
use crate::project::Project;
use anyhow::Result;
use clap::Args;
#[derive(Args)]
pub(crate) struct Options {}
pub(crate) fn run(_p: &Project, _o: &Options) -> Result<()> {
    Ok(())
}
