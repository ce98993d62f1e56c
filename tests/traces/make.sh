#!/bin/sh
# Make the traces beside this file again from the full ones: make.sh H200X4_DIRECTORY PUBLIC_DIRECTORY H200X4_TF_DIRECTORY [OTHERS_DIRECTORY]
# The directories are absolute.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
minify() { "$python" "$here/minify.py" "$@"; }
for rank in 0 1 2 3; do
  for run in clean slow_loader_rank2 vgg_p2poff tiny; do
    minify "$1/$run/rank$rank.pt.trace.json.gz" "$here/$run/rank$rank.pt.trace.json.gz" --top-level --steps 4
  done
  minify "$1/resnet50_dataloader/rank$rank.pt.trace.json.gz" \
    "$here/resnet50_dataloader/rank$rank.pt.trace.json.gz" --top-level
done
for run in clean slow_loader_rank2 vgg_p2poff tiny; do cp "$1/$run/truth.json" "$here/$run/"; done
minify "$2/kineto_2021_resnet50_workers4.pt.trace.json.gz" \
  "$here/public/kineto_2021_resnet50_workers4.pt.trace.json.gz" --top-level --steps 3
minify "$2/nccl_data.json.gz" "$here/public/nccl_data.json.gz" --top-level
minify "$2/sampled_rank-1.json.gz" "$here/public/sampled_rank-1.json.gz"
minify "$2/rank_non_gpu.json.gz" "$here/public/rank_non_gpu.json.gz"
minify "$2/benchmark_result_2869224_1695835535_trace.json.gz" "$here/public/benchmark_result_alexnet.json.gz"
# These recordings are small, so they are copied unchanged.
cp "$2"/mi250_minitoy_train_ROCm6_2_kineto.json.gz "$2"/triton_example.json.gz \
  "$2"/rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz "$here/public/"
# Published recordings of other accelerators, AMD's GPUs, inference and JAX, from the fourth directory.
if [ $# -gt 3 ]; then
  minify "$4/sglang_decode.json.gz" "$here/others/sglang_decode.json.gz" --forget-host --without python_function
  minify "$4/h100_falcon.json.gz" "$here/others/h100_falcon.json.gz" --forget-host --without python_function
  minify "$4/mtia_inference.json.gz" "$here/others/mtia_inference.json.gz" --forget-host --first-ms 130
  "$python" "$here/minify_xspace.py" "$4/jax_conv.xplane.pb" "$here/others/jax_conv.xplane.pb.gz" --gpus 2
fi
"$python" "$here/minify_xspace.py" "$3/mirrored_nccl.xplane.pb.gz" \
  "$here/tensorflow/mirrored_nccl.xplane.pb.gz" --steps 3 --shortest 10
"$python" "$here/minify_xspace.py" "$3/mirrored_cpu.xplane.pb.gz" \
  "$here/tensorflow_exchange/mirrored_cpu.xplane.pb.gz" --steps 3 --shortest 60 --gpus 2
# Pack the full recordings. Python finds the module in the repository's root.
cd "$here/../.."
for run in clean slow_loader_rank2 vgg_p2poff tiny resnet50_dataloader; do
  "$python" -m tests.traces.pack pack "$1/$run" "tests/traces/whole/$run.npz"
done
"$python" -m tests.traces.pack pack "$2/kineto_2021_resnet50_workers4.pt.trace.json.gz" \
  tests/traces/whole/kineto_2021_resnet50_workers4.npz
chmod -R u+w "$here"
