//! Where images go on a node: the OCI image layout.
