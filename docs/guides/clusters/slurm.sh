#!/bin/bash
# Starts a Ray cluster inside a Slurm job and ranks policies on it: sbatch docs/guides/clusters/slurm.sh
#SBATCH --job-name=kmifqe
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=1
#SBATCH --mem=64G
#SBATCH --time=08:00:00
#SBATCH --signal=B:TERM@300   # five minutes before the end: the ranking saves and stops
set -euo pipefail
source .venv/bin/activate     # the same environment on every node, on a shared file system

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address="$(srun --nodes=1 --ntasks=1 -w "$head" hostname --ip-address | awk '{print $1}'):6379"

srun --nodes=1 --ntasks=1 -w "$head" \
  ray start --head --node-ip-address="${address%:*}" --port=6379 --num-cpus="$SLURM_CPUS_PER_TASK" --block &
sleep 15
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
  srun --nodes=$((SLURM_JOB_NUM_NODES - 1)) --ntasks=$((SLURM_JOB_NUM_NODES - 1)) --exclude="$head" \
    ray start --address="$address" --num-cpus="$SLURM_CPUS_PER_TASK" --block &
  sleep 15
fi

# --resume: submit the same job again to go on where a job was stopped or preempted.
kmifqe rank log.hdf5 --policy 'checkpoints/*.zip' --ray "$address" --out runs/choice --resume &
ranking=$!
trap 'kill -TERM "$ranking"; wait "$ranking"' TERM
wait "$ranking"
