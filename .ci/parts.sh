# Functions of `.ci/run` and `.ci/nightly`, which source this file from the project's directory.
set -euo pipefail
mkdir -p build/ci
scratch=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$scratch"' EXIT
export CUDA_VISIBLE_DEVICES=''
unset PYTHONDONTWRITEBYTECODE # without bytecode, a thousand processes compile their imports

# part NAME COMMAND...: run the command and print its duration.
part() {
  local name=$1 begun=$SECONDS
  shift
  echo "== $name"
  "$@"
  printf '%s\t%d s\n' "$name" $((SECONDS - begun)) | tee -a "$scratch/times"
}
# beside NAME COMMAND...: run the command, which must not judge times, beside the next parts. `joined` waits for all such
# commands and prints the end of their output.
declare -A besides=()
beside() {
  local name=$1
  shift
  part "$name" "$@" >"build/ci/$name.log" 2>&1 &
  besides["$name"]=$!
}
joined() {
  local name failed=0
  for name in "${!besides[@]}"; do
    wait "${besides[$name]}" || failed=1
    tail -n 50 "build/ci/$name.log"
  done
  besides=()
  return $failed
}
repeats() { .venv/bin/python .ci/repeats.py "$@"; }
rows() { .venv/bin/python .ci/rows.py "$@"; }
# Hundreds of the tests start programs that share their cores with other load. A test that was only disturbed passes when
# it runs alone. A test that fails alone has a real fault, and fails the script.
again() {
  .venv/bin/python .ci/again.py --most 3 \
    --rate "one test of 3,150 failed in each of three runs out of six, another each time, and passed alone"
}

# Install a browser if possible, for the tests that draw pages.
browser() {
  if command -v chromium >/dev/null || command -v google-chrome >/dev/null; then return; fi
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium chromium-driver >/dev/null
  else
    echo "no browser, and no right to install one: the tests that draw, and those with axe, are skipped"
  fi
}
