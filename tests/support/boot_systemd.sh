#!/bin/sh
# Runs in new pid, mount, uts, ipc and cgroup namespaces: makes a root of its own and becomes systemd there.
#
#   boot_systemd.sh ROOT WORK SHARED [READ-ONLY FOLDER]...
#
# ROOT stays as it is: an overlay in memory takes what is written. WORK is an empty folder, used as a mount point.
# Folders are found inside where they are outside; SHARED, which both sides may write, is /srv/shared inside.
set -eu
lower=$1 work=$2 shared=$3
shift 3

mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$work"
mkdir "$work/upper" "$work/work" "$work/root"
mount -t overlay -o "lowerdir=$lower,upperdir=$work/upper,workdir=$work/work" overlay "$work/root"
cd "$work/root"

mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
# systemd takes a /dev that is a mount point as it is; otherwise it would mount the machine's own
mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
mount -t tmpfs -o mode=1777 tmpfs dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
for fd in 0 1 2; do ln -s "/proc/self/fd/$fd" "dev/$(echo stdin stdout stderr | cut -d ' ' -f $((fd + 1)))"; done
for node in null zero full random urandom tty kmsg; do
  if [ -e "/dev/$node" ]; then
    : >"dev/$node"
    mount --bind "/dev/$node" "dev/$node"
  fi
done

mkdir -p srv/shared
mount --bind "$shared" srv/shared
for folder in "$@"; do
  mkdir -p ".$folder"
  mount --bind "$folder" ".$folder"
  mount -o remount,bind,ro ".$folder"
  # services with users of their own get there, too
  while folder=$(dirname "$folder") && [ "$folder" != / ]; do chmod a+x ".$folder" 2>/dev/null || :; done
done

hostname booted-by-tests
: >etc/machine-id
mkdir -p etc/systemd/journald.conf.d
printf '[Journal]\nStorage=volatile\nReadKMsg=no\nForwardToWall=no\nRateLimitIntervalSec=0\n' >etc/systemd/journald.conf.d/tests.conf
for unit in getty.target systemd-logind.service apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer \
  dpkg-db-backup.timer systemd-update-utmp.service systemd-update-utmp-runlevel.service; do
  ln -sf /dev/null "etc/systemd/system/$unit"
done

mkdir .outside
pivot_root . .outside
umount -l /.outside
rmdir /.outside
export container=other PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
exec /lib/systemd/systemd --unit=multi-user.target --log-target=journal </dev/null
