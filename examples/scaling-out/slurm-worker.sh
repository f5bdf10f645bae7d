#!/usr/bin/env bash
#SBATCH --job-name=osmosis-worker
#SBATCH --cpus-per-task=4
#SBATCH --mem=32G
#SBATCH --gres=gpu:1
#SBATCH --time=08:00:00
# SIGTERM before the time is up: the worker releases its run, and another one continues it.
#SBATCH --signal=B:TERM@330
#SBATCH --output=osmosis-worker-%j.log
set -euo pipefail

export OSMOSIS_HOME="${SLURM_TMPDIR:-${TMPDIR:-/tmp}}/osmosis-$SLURM_JOB_ID"

# `exec` replaces the shell, so the worker receives the signal.
exec /opt/osmosis/.venv/bin/osmosis platform worker \
  --plain \
  --url https://osmosis.example.com \
  --pool gpu \
  --gpus 1 \
  --token-file "$HOME/.config/osmosis/worker.token" \
  --once \
  --idle-exit 10m
