"""Worlds whose truth is known: closed forms, a vectorised Pendulum, and what trains and collects in them."""
