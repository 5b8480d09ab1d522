//! The project's chores: `cargo xtask test | gen | check | image | bench | cluster`. Links none of the product's crates: it runs them.

mod bench;
mod built;
mod cluster;
mod containerd;
mod generate;
mod image;
mod layout;
mod named;
mod packages;
mod shell;
mod test;
mod types;
mod walls;

use std::process::ExitCode;

const USAGE: &str = "\
The project's chores.

Usage: cargo xtask COMMAND

  test [--all]     the quick tests; with --all the long ones too. Installs the Debian packages it needs when root, and
                   with --all builds containerd 2.2 and Kubernetes where Go is, once a machine, and runs on a cluster: the
                   one that is up, or one that it takes down afterwards
  test --soak [--minutes N] [TARGET...]
                   fuzz each target of fuzz/ for N minutes (2). Needs a nightly toolchain; installs cargo-fuzz
  gen [--check]    write what is generated (deploy/, the gRPC code); with --check only say whether it is up to date
  check            what the compiler does not see: the walls between crates, that tests which documents name are there,
                   and that no two types share a name
  ci               everything that must pass before a change lands
  image [--push REFERENCE [--insecure]] [--profile NAME | --binary FILE] [--out DIR]
                   the image of controller and agents, as an OCI layout in DIR (target/image); pushed by skopeo
  bench [NAME]     measure; without a name everything
  cluster COMMAND  a real Kubernetes cluster on this machine: up, down, status, kubeconfig, exec, stop, start. Needs root
                   and Go; ends with code 3 where one is missing";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let result = match args.as_slice() {
        // It has codes of its own.
        ["cluster", rest @ ..] => return cluster::main(rest),
        ["test"] => test::run(false),
        ["test", "--all"] => test::run(true),
        ["test", "--soak", rest @ ..] => test::soak::SoakWish::parse(rest).and_then(|wish| test::soak::run(&wish)),
        ["gen"] => generate::run(false),
        ["gen", "--check"] => generate::run(true),
        ["check"] => walls::check().and_then(|()| named::check()).and_then(|()| types::check()),
        ["ci"] => ci(),
        ["image", rest @ ..] => image::Wish::parse(rest).and_then(|wish| image::run(&wish)),
        ["bench"] => bench::run(None),
        ["bench", name] => bench::run(Some(name)),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(())
        }
        _ => Err(anyhow::anyhow!("unknown command: {}\n\n{USAGE}", args.join(" "))),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("error: {problem:#}");
            ExitCode::FAILURE
        }
    }
}

fn ci() -> anyhow::Result<()> {
    let steps: [(&str, &[&str]); 3] = [
        ("format", &["fmt", "--all", "--check"]),
        ("clippy", &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"]),
        ("documentation", &["doc", "--workspace", "--no-deps", "--locked"]),
    ];
    for (name, args) in steps {
        println!("== {name}");
        shell::cargo(args, &[("RUSTDOCFLAGS", "-D warnings")])?;
    }
    println!("== walls");
    walls::check()?;
    println!("== tests that documents name");
    named::check()?;
    println!("== names of types");
    types::check()?;
    println!("== generated files");
    generate::run(true)?;
    println!("== tests");
    test::run(true)
}
