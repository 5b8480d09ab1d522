//! The controller's shell: watches become events, plans become writes.
