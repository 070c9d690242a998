#!/usr/bin/env bash
# The main job on one machine: trainer ranks and inference workers as processes, weights of Qwen3-30B-A3B's structure cut
# to a few layers, three versions pulled and verified.
#   scripts/demo.sh PROGRAM [sluice sync options, after the demo's own]
set -euo pipefail
program=${1:?usage: scripts/demo.sh PROGRAM [OPTIONS]: PROGRAM is the sluice that make build made}
shift

model=(--model Qwen3-30B-A3B --set num_hidden_layers=4 --set num_experts=32)
trainer=tp=2,pp=2,ep=2
worker=tp=2,ep=on,replicas=2
trainers=4
workers=4

# Open MPI only launches: its own UCX components stay out, and it may share two cores among eight ranks.
mpirun=(mpirun -n $((trainers + workers)) --oversubscribe --bind-to none
    --mca pml ob1 --mca osc ^ucx --mca btl self,vader,tcp --mca btl_vader_single_copy_mechanism none)
[[ $(id -u) -eq 0 ]] && mpirun+=(--allow-run-as-root)

echo "plan: $trainers trainer ranks ($trainer) to $workers inference workers ($worker)"
"$program" plan "${model[@]}" --trainer "$trainer" --worker "$worker"
echo
echo "sync: three versions, each compared with what the owners hold"
"${mpirun[@]}" "$program" sync "${model[@]}" --trainer "$trainer" --worker "$worker" --versions 3 --verify digest "$@"
