//! How much memory this process may use: the machine's, or its control group's limit if that is less.

use std::io;
use std::path::Path;

use nix::unistd::{SysconfVar, sysconf};

use super::fork::OnceBox;
use super::is_short;

/// In bytes; read once, since it hardly ever changes. `None` if the system does not tell. While the limit cannot be read, such as for
/// want of descriptors, at most [`UNREAD`].
pub(crate) fn available() -> Option<u64> {
    static AVAILABLE: OnceBox<Option<u64>> = OnceBox::new();
    once_read(&AVAILABLE)
}

/// Taken instead of a limit that there may be, in bytes. Chosen: half of it is the default budget where the system tells nothing.
const UNREAD: u64 = 2 << 30;

fn once_read(known: &OnceBox<Option<u64>>) -> Option<u64> {
    if let Some(known) = known.get() {
        return *known;
    }
    let least = |limit: Option<u64>| limit.into_iter().chain(machine()).min();
    match own_limit() {
        Ok(limit) => *known.get_or_init(|| least(limit)),
        Err(_) => least(Some(UNREAD)),
    }
}

fn own_limit() -> io::Result<Option<u64>> {
    let groups = read("/proc/self/cgroup")?.unwrap_or_default();
    let mounts = read("/proc/self/mountinfo")?.unwrap_or_default();
    group_limit(&groups, &mounts, read)
}

/// `None`: there is no such file, as in a kernel without control groups, or this process may never read it.
fn read(path: &str) -> io::Result<Option<String>> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if is_short(&error) => Err(error),
        Err(_) => Ok(None),
    }
}

fn machine() -> Option<u64> {
    let ask = |what| sysconf(what).ok().flatten().map(i64::cast_unsigned);
    ask(SysconfVar::_PHYS_PAGES)?.checked_mul(ask(SysconfVar::PAGE_SIZE)?)
}

/// The lowest limit among this process's control groups and their ancestors, for both versions of control groups.
fn group_limit(
    groups: &str,
    mounts: &str,
    read: impl Fn(&str) -> io::Result<Option<String>>,
) -> io::Result<Option<u64>> {
    let mut lowest: Option<u64> = None;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(group)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        // Version 2 has one hierarchy, without a list of controllers.
        let (version, file) = if controllers.is_empty() {
            ("cgroup2", "memory.max")
        } else if controllers.split(',').any(|name| name == "memory") {
            ("cgroup", "memory.limit_in_bytes")
        } else {
            continue;
        };
        for folder in folders(group, mounts, version) {
            let limit = read(&format!("{folder}/{file}"))?;
            let limit = limit.and_then(|text| parse_limit(&text));
            lowest = lowest.into_iter().chain(limit).min();
        }
    }
    Ok(lowest)
}

/// The folders of a group and its ancestors, the innermost first.
fn folders(group: &str, mounts: &str, version: &str) -> Vec<String> {
    for line in mounts.lines() {
        // ID PARENT MAJOR:MINOR ROOT MOUNT_POINT OPTIONS [MORE...] - TYPE SOURCE OPTIONS
        let Some((mount, system)) = line.split_once(" - ") else {
            continue;
        };
        let system: Vec<_> = system.split(' ').collect();
        let mut mount = mount.split(' ').skip(3);
        let (Some(root), Some(point), [kind, _, options, ..]) =
            (mount.next(), mount.next(), &system[..])
        else {
            continue;
        };
        let memory = *kind == "cgroup2" || options.split(',').any(|option| option == "memory");
        if *kind != version || !memory {
            continue;
        }
        // In a container, the mount may begin inside the hierarchy. Or the group's name does, and is then not below the mount's root.
        let inside = Path::new(group).strip_prefix(root);
        let inside = inside.unwrap_or_else(|_| Path::new(""));
        return inside
            .ancestors()
            .map(|path| match path.to_str() {
                None | Some("") => point.to_owned(),
                Some(path) => format!("{point}/{}", path.trim_start_matches('/')),
            })
            .collect();
    }
    Vec::new()
}

/// `max` is no limit.
fn parse_limit(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::fork::tests::{in_a_child, open_at_most, opens_files_anyway};

    const V2: &str =
        "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
    const V1: &str = "\
30 23 0:27 / /sys rw - sysfs sysfs rw
31 30 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct
32 30 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";

    fn limit(groups: &str, mounts: &str, files: &[(&str, &str)]) -> Option<u64> {
        let read = |path: &str| {
            let file = files.iter().find(|(name, _)| *name == path);
            Ok(file.map(|(_, text)| (*text).to_owned()))
        };
        group_limit(groups, mounts, read).unwrap()
    }

    #[test]
    fn the_lowest_limit_on_the_way_up_counts() {
        let files = [
            ("/sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("/sys/fs/cgroup/a/memory.max", "4096\n"),
            ("/sys/fs/cgroup/memory.max", "8192\n"),
        ];
        assert_eq!(limit("0::/a/b\n", V2, &files), Some(4096));
        assert_eq!(limit("0::/\n", V2, &files), Some(8192));
        assert_eq!(limit("0::/c\n", V2, &files[..2]), None);
    }

    #[test]
    fn the_first_version_has_a_hierarchy_for_memory() {
        let files = [
            ("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "1024\n"),
            ("/sys/fs/cgroup/cpu/job/memory.limit_in_bytes", "1\n"),
        ];
        let groups = "9:name=systemd:/\n5:cpu,cpuacct:/job\n4:hugetlb,memory:/job\n0::/\n";
        assert_eq!(limit(groups, V1, &files), Some(1024));
        assert_eq!(limit("9:name=systemd:/job\n", V1, &files), None);
    }

    #[test]
    fn a_container_sees_its_own_group_at_the_mount_point() {
        let mounts = V2.replace(" / /sys", " /pods/one /sys");
        let files = [
            ("/sys/fs/cgroup/memory.max", "100"),
            ("/sys/fs/cgroup/inner/memory.max", "50"),
        ];
        assert_eq!(limit("0::/pods/one\n", &mounts, &files), Some(100));
        assert_eq!(limit("0::/pods/one/inner\n", &mounts, &files), Some(50));
        // The group's name may be the host's while the mount is the container's, or the other way round.
        assert_eq!(limit("0::/../two\n", &mounts, &files), Some(100));
    }

    #[test]
    fn what_is_not_understood_is_no_limit() {
        for groups in ["", "0\n", "::\n", "0::\n", "x:y:z\n"] {
            for mounts in ["", "1 2 3\n", " - \n", "a b c d e - cgroup2\n", V1, V2] {
                assert_eq!(limit(groups, mounts, &[]), None);
            }
        }
        let files = [("/sys/fs/cgroup/memory.max", "-1 or so")];
        assert_eq!(limit("0::/\n", V2, &files), None);
    }

    #[test]
    fn a_limit_that_cannot_be_read_is_no_machine_without_one() {
        let denied = |_: &str| Err(io::Error::from_raw_os_error(libc::EMFILE));
        assert!(group_limit("0::/a\n", V2, denied).is_err());
        if opens_files_anyway() {
            return;
        }
        let known = OnceBox::new();
        assert!(in_a_child(|| {
            open_at_most(0);
            once_read(&known).unwrap() <= UNREAD && known.get().is_none()
        }));
        assert_eq!(once_read(&known), available());
        assert!(known.get().is_some());
    }

    #[test]
    fn this_machine_has_some() {
        let some = available().unwrap();
        assert!((64 << 20..1 << 50).contains(&some), "{some}");
        assert!(some <= machine().unwrap());
    }
}
