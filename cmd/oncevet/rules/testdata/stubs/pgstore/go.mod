module github.com/effectively-once/once/store/pgstore

go 1.24
