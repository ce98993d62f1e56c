#!/bin/sh
# Make the traces beside this file again from the published ones: make.sh DIRECTORY, absolute.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
for name in sglang_decode mtia_inference gloo_cpu_rank34_of_300; do
  "$python" "$here/../minify.py" "$1/$name.json.gz" "$here/$name.json.gz"
done
for name in h100_falcon h100_qwen_forward; do
  "$python" "$here/../minify.py" "$1/$name.json.gz" "$here/$name.json.gz" --shapes
done
# Most events of these two traces are Python functions. Of these, only calls of modules are kept.
for name in sglang_prefill mi300_resnet_rank0_of_8; do
  "$python" - "$1/$name.json.gz" "$here/$name.json" <<'END'
import gzip, json, sys

with gzip.open(sys.argv[1], "rt") as file:
    document = json.load(file)
document["traceEvents"] = [
    event
    for event in document["traceEvents"]
    if event.get("cat") != "python_function" or event["name"].startswith("nn.Module")
]
with open(sys.argv[2], "w") as file:
    json.dump(document, file)
END
  "$python" "$here/../minify.py" "$here/$name.json" "$here/$name.json.gz"
  rm "$here/$name.json"
done
gzip -9 -n -c "$1/jax_conv.xplane.pb" > "$here/jax_conv.xplane.pb.gz"
chmod u+w "$here"/*
