#!/usr/bin/env bash
# tools/gpu-check without a GPU: its parts, limits, table and exit codes, on a machine of scripts
# that answer for nvidia-smi, the checks, the sanitizer and pipelag itself.
# usage: gpu_check_test.sh SOURCE_FOLDER
set -euo pipefail
check=$1/tools/gpu-check
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $1"; cat "$work/out"; exit 1; }

mkdir -p "$work/bin" "$work/build/tests"
script() { printf '#!/usr/bin/env bash\n%s\n' "$2" >"$work/$1"; chmod +x "$work/$1"; }
# check EXIT_CODE [ARGUMENT]…
run() {
  local expected=$1 code=0
  shift
  PATH=$work/bin:$PATH "$check" --output "$work/files" "$@" >"$work/out" 2>&1 || code=$?
  ((code == expected)) || fail "exit code $code, not $expected"
}
has() { grep -qE "$1" "$work/out" || fail "no line like '$1'"; }

script bin/nvidia-smi 'exit 9'
run 77
has '^tools/gpu-check: skipped, no GPU was found'

script bin/nvidia-smi 'echo "NVIDIA Imitation"'
run 1 --build "$work/build"
has 'build/pipelag +FAILED +not built: cmake --build'

# One float, the same in every file of weights.
header='{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
printf "\\x$(printf %02x ${#header})\0\0\0\0\0\0\0%s\0\0\x80\x3f" "$header" >"$work/weights"
script build/pipelag 'while (($# > 0)); do
  [[ $1 == --export ]] && cp "${0%/build/*}/weights" "$2"
  shift
done
echo "{\"final_loss\": 1.5, \"weights_sha256\": \"abc\", \"tokens_per_s\": 1000, \"error\": 0.01}"'
: >"$work/build/libpipelag_cuda.so"
script build/tests/gpu_kernel_check 'exit 0'
script build/tests/gpu_stage_check 'exit 0'
script bin/compute-sanitizer 'exit 0'
script bin/python3 'case $1 in -c | *gpt2_torch.py) exit 1 ;; esac
PATH=${PATH#*:} exec python3 "$@"'
run 0 --build "$work/build"
for what in 'kernels against' 'stages against' 'compute-sanitizer memcheck' \
  'compute-sanitizer racecheck' 'gpipe 1f1b 2bw zb-h1 on 1, 2, 4 ranks, fp32' \
  'NCCL to itself on one GPU' 'GPT-2 124M, bf16' 'GPT-2 1.5B, bf16' \
  'predicted from 1f1b' 'CUDA graphs'; do
  has "^$what.* ok "
done
has '^PyTorch, GPT-2 124M +skipped +not installed'
# The table comes last, after a line that names the GPU, and the same is in a file.
[[ $(tail -1 "$work/out") == 'PyTorch, GPT-2 1.5B'* ]] || fail 'the table is not last'
has '^1 × NVIDIA Imitation, '
python3 -c '
import json, sys
rows = json.load(open(sys.argv[1]))["rows"]
assert len(rows) == 13 and all(row["result"] in ("ok", "skipped") for row in rows), rows' \
  "$work/files/table.json" 2>>"$work/out" || fail 'table.json'
[[ -e $work/files/gpt2-124M.json ]] || fail 'no JSON of the runs'

# A kernel that deviates, and a finding of the sanitizer: both are said, and nothing else is lost.
script build/tests/gpu_kernel_check 'exit 1'
script bin/compute-sanitizer 'exit 9'
run 1 --build "$work/build"
has '^kernels against the processor.s +FAILED'
has '^compute-sanitizer memcheck +FAILED'
has '^GPT-2 124M, bf16 +ok'

# Weights that are not the serial reference's.
script build/tests/gpu_kernel_check 'exit 0'
script bin/compute-sanitizer 'exit 0'
cp "$work/build/pipelag" "$work/good"
{ head -c -4 "$work/weights"; printf '\0\0\0\x40'; } >"$work/others"
sed -i 's|&& cp .*|\&\& [[ $2 != *cuda-* ]] \&\& cp "${0%/build/*}/weights" "$2"\
  [[ $1 == --export \&\& $2 == *cuda-* ]] \&\& cp "${0%/build/*}/others" "$2"|' \
  "$work/build/pipelag"
run 1 --build "$work/build"
has '^1f1b on 2 ranks, fp32 +FAILED +weights 1.00e.00'
cp "$work/good" "$work/build/pipelag"

# A build that does not start here, and one whose CUDA does not.
script build/pipelag 'echo "pipelag: error while loading shared libraries: libdnnl.so.2"; exit 127'
run 1 --build "$work/build"
has 'pipelag list +FAILED +pipelag: error while loading shared libraries: libdnnl.so.2'
script build/pipelag 'echo "cuda  no GPU was found: CUDA cannot be loaded: libcublasLt.so.13"'
run 1 --build "$work/build"
has 'pipelag list +FAILED +no GPU was found: CUDA cannot be loaded: libcublasLt.so.13'
cp "$work/good" "$work/build/pipelag"

# What does not end costs its own part; what comes behind it has what time is left.
script build/tests/gpu_kernel_check 'sleep 1000'
run 1 --build "$work/build" --seconds 2
has '^kernels +FAILED +not done within [12] s'
has '^peer +skipped +no time is left'
echo "gpu-check does what it says"
