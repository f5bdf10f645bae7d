#!/bin/sh
# Runs the tests of the sandbox under a kernel that has control groups of version 2 with all their controllers, whatever this
# machine's kernel has: user-mode Linux (Debian: apt install user-mode-linux), with this machine's files, read-only, as its own.
#
#     scripts/control_group_tests.sh [PYTHON]            the interpreter of .venv by default
#
# Tests are run as root of that kernel, then those of the groups as an ordinary user who was given one. Exits with 0 when all of
# them passed, and with 0 and the reason where there is no user-mode Linux.
set -u

# -- inside: the first process of that kernel --------------------------------------------------------------------------------
power_off() {
    sync
    echo o > /proc/sysrq-trigger
    sleep 60
}

mount_places() {
    mount -t proc proc /proc
    mount -t sysfs sys /sys
    mount -t cgroup2 none /sys/fs/cgroup
    mkdir -p /dev/shm /dev/pts
    for place in /dev/shm /tmp /var/tmp /run; do mount -t tmpfs -o mode=1777 tmpfs "$place"; done
    mount -t devpts devpts /dev/pts
    for name in fd:fd stdin:fd/0 stdout:fd/1 stderr:fd/2; do ln -s "/proc/self/${name#*:}" "/dev/${name%%:*}"; done
    # A killed process is reported at length otherwise.
    dmesg -n 1
    ip link set lo up
}

as_user() {
    group=/sys/fs/cgroup/given
    mkdir "$group"
    echo "+memory +pids +cpu" > /sys/fs/cgroup/cgroup.subtree_control
    chown 1000 "$group" "$group/cgroup.procs" "$group/cgroup.subtree_control" "$group/cgroup.threads"
    mkdir -m 777 /tmp/user
    # Its own process alone: a group with those of others is left alone.
    HOME=/tmp/user sh -c 'echo $$ > "$0/cgroup.procs"; exec setpriv --reuid 1000 --regid 1000 --clear-groups "$@"' "$group" "$@"
}

if [ $$ = 1 ]; then
    export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp
    export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1
    mount_places
    cd "$REPOSITORY" || power_off
    "$TESTS_PYTHON" -m pytest -q -rs --color=no -p no:cacheprovider tests/sandbox
    as_root=$?
    groups="tests/sandbox/test_run_group.py tests/sandbox/test_run_control.py"
    if setpriv --reuid 1000 --regid 1000 --clear-groups "$TESTS_PYTHON" \
        -c 'import subprocess, sys; subprocess.run([sys.executable, "-c", ""], check=True)' 2> /dev/null; then
        # shellcheck disable=SC2086
        as_user "$TESTS_PYTHON" -m pytest -q -rs --color=no -p no:cacheprovider $groups
        echo "ended: as root $as_root, as a user $?"
    else
        echo "left out: an ordinary user can not read what $TESTS_PYTHON needs"
        echo "ended: as root $as_root, as a user 0"
    fi
    power_off
fi

# -- outside -----------------------------------------------------------------------------------------------------------------
kernel=$(command -v linux.uml || command -v linux) || {
    echo "left out: there is no user-mode Linux here (Debian: apt install user-mode-linux)"
    exit 0
}
here=$(cd "$(dirname "$0")/.." && pwd)
python=${1:-$here/.venv/bin/python}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# What the kernel does not know of its command line is the environment of its first process.
"$kernel" mem=4096M root=/dev/root rootfstype=hostfs rootflags=/ ro "init=$here/scripts/control_group_tests.sh" \
    con=null con0=null,fd:1 "REPOSITORY=$here" "TESTS_PYTHON=$python" < /dev/null 2>&1 | tee "$log"
grep -q "ended: as root 0, as a user 0" "$log"
