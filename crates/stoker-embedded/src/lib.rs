//! A Kubernetes-compatible API in a box, as one tower service.
