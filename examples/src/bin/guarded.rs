//! A service that authenticates its callers. `guarded serve URL` and `guarded call URL` take `--secret FILE` for a token, or
//! `--certificate`, `--key` and `--trust` for TLS. Without arguments this starts three processes: a server, a client, and a client
//! with a wrong secret.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, Parser, Subcommand};
use tensorpipe::transports::{Pem, TlsConfig, TlsTransport};
use tensorpipe::{ConnectPolicy, Context, Tensor};
use tensorpipe_rpc::{CallContext, CallError, Server, ServiceError, tensor_service};

#[tensor_service]
trait Vault {
    async fn sum(&self, values: Tensor, cx: &CallContext) -> Result<(f32, String), ServiceError>;
    /// Denied to every caller by `authorize`.
    async fn burn(&self);
}

struct Here;

impl Vault for Here {
    async fn sum(&self, values: Tensor, cx: &CallContext) -> Result<(f32, String), ServiceError> {
        let values = values.as_slice::<f32>()?;
        Ok((values.iter().sum(), cx.caller().to_string()))
    }

    async fn burn(&self) {}
}

/// A server and a client that know each other, and those that they do not.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Subcommand)]
enum Role {
    /// Serves at a URL: `tcp://127.0.0.1:7432`, or `tls://…` with a certificate.
    Serve {
        url: String,
        #[command(flatten)]
        guard: Guard,
    },
    /// Calls the server there.
    Call {
        url: String,
        #[command(flatten)]
        guard: Guard,
    },
}

#[derive(Args)]
struct Guard {
    /// Of at least 16 random bytes, the same at both ends: `openssl rand -out secret 32`.
    #[arg(long)]
    secret: Option<PathBuf>,
    /// What this end shows, in PEM.
    #[arg(long, requires = "key")]
    certificate: Option<PathBuf>,
    #[arg(long)]
    key: Option<PathBuf>,
    /// Whose certificates this end believes. A server asks its callers for one.
    #[arg(long)]
    trust: Option<PathBuf>,
}

impl Guard {
    fn context(&self) -> Result<Context> {
        let mut builder = Context::builder().connect_policy(ConnectPolicy::once());
        if let Some(secret) = &self.secret {
            let secret = std::fs::read(secret).context("the secret")?;
            builder = builder.token("trainers", secret);
        }
        if self.certificate.is_some() || self.trust.is_some() {
            let mut config = TlsConfig::new();
            if let Some((certificate, key)) = self.certificate.as_ref().zip(self.key.as_ref()) {
                config = config.certificate(Pem::file(certificate), Pem::file(key));
            }
            if let Some(trust) = &self.trust {
                config = config.trust(Pem::file(trust)).clients(Pem::file(trust));
            }
            builder = builder.prefer_transport(TlsTransport::new(config)?);
        }
        Ok(builder.build()?)
    }
}

async fn serve(url: &str, guard: &Guard) -> Result<()> {
    let server = Server::builder()
        .context(&guard.context()?)
        .service(VaultService::new(Here))
        .authorize(|_, _, method| match method {
            "burn" => Err("nobody may".to_owned()),
            _ => Ok(()),
        })
        .listen(url)
        .await?;
    println!("{}", server.url());
    server.wait().await;
    Ok(())
}

async fn call(url: &str, guard: &Guard) -> Result<()> {
    let client = VaultClient::connect_with(&guard.context()?, url).await?;
    println!("the server: {}", client.connection().peer());
    let values = Tensor::from(vec![1.0f32; 1 << 20]);
    let (sum, caller) = client.sum(&values).await?;
    println!("the sum of 4 MiB: {sum}, asked for by {caller}");
    match client.burn().await {
        Err(error @ CallError::Denied(_)) => println!("{error}"),
        other => bail!("{other:?}"),
    }
    println!("{}", client.connection().route());
    Ok(())
}

/// Starts a server, a client with the same secret, and a client with another secret.
fn show() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("guarded-{}", std::process::id()));
    std::fs::create_dir(&folder)?;
    let secret = |name: &str, byte: u8| -> Result<PathBuf> {
        let path = folder.join(name);
        std::fs::write(&path, [byte; 32])?;
        Ok(path)
    };
    let (ours, other) = (secret("ours", 1)?, secret("other", 2)?);
    let program = std::env::current_exe()?;
    let run = |role: &str, url: &str, secret: &Path| {
        let mut command = Command::new(&program);
        command.args([role, url, "--secret"]).arg(secret);
        command
    };
    let mut server = run("serve", "tcp://127.0.0.1:0", &ours);
    let mut server = server.stdout(Stdio::piped()).spawn()?;
    let mut url = String::new();
    let said = server.stdout.take().context("its output")?;
    BufReader::new(said).read_line(&mut url)?;
    let friend = run("call", url.trim(), &ours).status();
    let guesser = run("call", url.trim(), &other).status();
    server.kill()?;
    server.wait()?;
    std::fs::remove_dir_all(&folder)?;
    ensure!(friend?.success(), "the client was refused");
    ensure!(
        !guesser?.success(),
        "a client without the secret was let in"
    );
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    match Cli::parse().role {
        Some(Role::Serve { url, guard }) => serve(&url, &guard).await,
        Some(Role::Call { url, guard }) => call(&url, &guard).await,
        None => tokio::task::spawn_blocking(show).await?,
    }
}
