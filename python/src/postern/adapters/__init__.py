"""Postern's rollouts in the shapes other trainers ask for. Nothing here imports those trainers."""
