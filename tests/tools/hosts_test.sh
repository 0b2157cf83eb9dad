#!/usr/bin/env bash
# Ranks on hosts of their own: network namespaces joined by a bridge, with limited bandwidth, and
# with delay too. Ends with the weights of threads, and the measured runs show either. Exit code 77,
# with the reason, where namespaces are not permitted.
# usage: hosts_test.sh PIPELAG
set -euo pipefail
pipelag=$1
hosts=(plag-a plag-b plag-c)
bridge=plag-br
work=$(mktemp -d)

clean() {
  for host in "${hosts[@]}"; do ip netns del "$host" 2>/dev/null || true; done
  ip link del "$bridge" 2>/dev/null || true
  rm -rf "$work"
}
skip() { echo "skipped: $1"; exit 77; }

((EUID == 0)) || skip "network namespaces need root"
command -v ip >/dev/null || skip "ip is not installed"
ip netns add plag-try 2>/dev/null || skip "network namespaces are not permitted here"
ip netns del plag-try
trap clean EXIT
ip link add "$bridge" type bridge 2>/dev/null || skip "bridges are not permitted here"
ip link set "$bridge" up
for i in "${!hosts[@]}"; do
  host=${hosts[$i]}
  ip netns add "$host"
  ip link add "plag-v$i" type veth peer name eth0 netns "$host"
  ip link set "plag-v$i" master "$bridge" up
  ip -n "$host" addr add "10.231.0.$((i + 1))/24" dev eth0
  ip -n "$host" link set eth0 up
  ip -n "$host" link set lo up
done

job=(run --schedule 1f1b,2bw --ranks 3 --microbatches 6 --steps 4 --layers 3 --hidden 64 --heads 2
  --sequence 32 --microbatch-size 4 --format json)
start() {
  for i in 2 1 0; do
    ip netns exec "${hosts[$i]}" env RANK=$i WORLD_SIZE=3 MASTER_ADDR=10.231.0.1 \
      MASTER_PORT=29500 "$pipelag" "${job[@]}" --backend mpi >"$work/$1.$i" &
  done
  wait
}
check() {
  [[ $(digests "$work/threads") == "$(digests "$work/$1.0")" ]] ||
    { echo "weights differ: $1"; exit 1; }
}
digests() { grep -o '"weights_sha256": "[0-9a-f]*"' "$1"; }
step() { grep -m1 -o '"step_time_ns": [0-9]*' "$1" | grep -o '[0-9]*$'; }

"$pipelag" "${job[@]}" >"$work/threads"
start near
check near
# limit WHAT...: on every host, in place of what was there.
limit() {
  for host in "${hosts[@]}"; do
    tc -n "$host" qdisc replace dev eth0 root "$@" 2>/dev/null ||
      skip "${done_before}tc $1 is not there for more"
  done
}
done_before="hosts without limits end with the weights of threads; "
limit tbf rate 10mbit burst 16kb latency 10s
start narrow
check narrow
# A step sends 6 messages of 4 sequences of 32 tokens of 64 floats over every link, each way.
(($(step "$work/narrow.0") > 6 * 4 * 32 * 64 * 4 * 8 * 1000 / 10)) ||
  { echo "the bandwidth does not show: $(step "$work/narrow.0") ns a step"; exit 1; }
narrow="narrow $(step "$work/narrow.0") ns a step"
done_before="near $(step "$work/near.0") ns and $narrow, with the weights of threads; "
limit netem delay 20ms rate 100mbit
start far
check far
# A flush step of 1F1B on three ranks waits for at least four delays one after the other.
(($(step "$work/far.0") > $(step "$work/near.0"))) &&
  (($(step "$work/far.0") >= 4 * 20000000)) ||
  { echo "the delay does not show: $(step "$work/near.0") and $(step "$work/far.0") ns"; exit 1; }
echo "near $(step "$work/near.0") ns, $narrow, far $(step "$work/far.0") ns; the weights of threads"
