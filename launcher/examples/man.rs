//! Prints mpirun's man page, which `cargo xtask docs` keeps in docs/mpirun.1 and `cargo xtask install` installs.

use std::io::{self, Write};

use clap_mangen::Man;

/// The sections of the page that are not made from options: exit status, variables, further reading.
const MORE: &str = r#".SH "EXIT STATUS"
.TP
\fB0\fR
All ranks ended with status 0.
.TP
\fBthe status of a rank\fR
Of the first rank to fail: its exit status, or 128 plus the signal that killed it; \fBMPI_Abort\fR's code in 8 bits, where 0 becomes 1.
.TP
\fB124\fR
The time of \fB\-\-timeout\fR was over.
.TP
\fB126\fR, \fB127\fR
The program cannot be executed, or is not there.
.TP
\fB130\fR
Ctrl\-C.
.SH "SEE ALSO"
The guide is in share/doc/banyan, beside this page's share/man.
"#;

fn main() -> io::Result<()> {
    let man = Man::new(banyan_launcher::options::table()).manual("Banyan MPI");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    writeln!(page, ".SH SYNOPSIS\n{}", escaped(banyan_launcher::options::USAGE))?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    writeln!(page, ".SH ENVIRONMENT")?;
    writeln!(page, ".TP\n\\fBMPIEXEC_TIMEOUT\\fR\nSeconds, as \\fB\\-\\-timeout\\fR, which counts more.")?;
    for setting in banyan_pmi::settings::ALL {
        let (about, default) = (escaped(setting.about).replace('`', ""), escaped(setting.default));
        writeln!(page, ".TP\n\\fB{}\\fR\n{about} [default: {default}]", setting.name)?;
    }
    write!(page, "{MORE}")?;
    io::stdout().write_all(&page)
}

/// Text as roff takes it.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('-', "\\-")
}
